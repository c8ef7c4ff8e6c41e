/** Branch a running box: each branch goes on from the same moment, with an answer of its own. */
import { Box } from 'vitrine'

await using box = await Box.create({ memoryMib: 128 })
await box.exec('sh', ['-c', 'seq 1 1000 > /tmp/numbers']) // work that is done once

const forks = await box.fork({ count: 3 })
try {
  const answers = await Promise.all(
    forks.map(async (fork, i) => {
      const { stdout } = await fork.exec('awk', [`{ sum += $1 * ${i + 1} } END { print sum }`, '/tmp/numbers'])
      return `branch ${i + 1}: ${stdout.trim()}`
    }),
  )
  console.log(answers.join('\n'))
  console.log('the first box still has', (await box.exec('wc', ['-l', '/tmp/numbers'])).stdout.trim())
} finally {
  await Promise.all(forks.map(fork => fork.remove({ force: true })))
}
