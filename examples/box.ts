/** A box: commands, files, and a disk that stays when the box is stopped. */
import { Box } from 'vitrine'

await using box = await Box.create({ memoryMib: 256, env: { GREETING: 'hello' } })

const { stdout, exitCode } = await box.exec('sh', ['-c', 'echo "$GREETING from $(uname -s)"'])
console.log(stdout.trim(), `(status ${exitCode})`)

await box.files.write('/root/notes.txt', 'one\ntwo\nthree\n')
const sort = box.spawn('sort', ['-r', '/root/notes.txt'])
sort.stdin.end()
for await (const chunk of sort.stdout) process.stdout.write(chunk)
await sort.exit

await box.stop()
console.log('stopped; starting again')
console.log((await box.files.readText('/root/notes.txt')).split('\n').length - 1, 'lines are still there')
