/** Save a running box, ruin it, and put it back: processes, memory and files are as they were. */
import { Box } from 'vitrine'

await using box = await Box.create({ memoryMib: 128 })

// A process that counts in its memory, and answers through a pipe.
const counter = 'n=0; while read line < /tmp/ask; do n=$((n+1)); echo $n > /tmp/answer; done'
await box.exec('sh', ['-c', `mkfifo /tmp/ask /tmp/answer; (${counter}) > /dev/null 2>&1 &`])
const count = async (): Promise<string> =>
  (await box.exec('sh', ['-c', 'echo > /tmp/ask; cat /tmp/answer'])).stdout.trim()
await box.files.write('/root/work.txt', 'precious\n')
console.log('counted to', await count())

await box.snapshot('before')
console.log('saved')

await box.files.remove('/root/work.txt')
console.log(
  'counted to',
  await count(),
  'then',
  await count(),
  'and the file is',
  (await box.files.exists('/root/work.txt')) ? 'there' : 'gone',
)

await box.rollback('before')
console.log('put back: counted to', await count(), 'and the file says', await box.files.readText('/root/work.txt'))
