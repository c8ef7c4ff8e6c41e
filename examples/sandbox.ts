/** Code that nobody trusts: no network, little memory, an end to its time and its output. */
import { Box, BoxError } from 'vitrine'

await using box = await Box.create({
  memoryMib: 128,
  network: 'none',
  user: '1000:1000',
  workdir: '/tmp',
  timeoutMs: 300_000,
})
const limits = { timeoutMs: 3000, maxOutputBytes: 10_000 }

async function judge(code: string): Promise<string> {
  try {
    const { exitCode, signal, stdout, timedOut } = await box.sh(code, { ...limits, input: '1 2 3\n' })
    if (timedOut) return 'took too long'
    return signal ? `was ended by ${signal}` : `said '${stdout.trim()}' (status ${exitCode})`
  } catch (error) {
    if (error instanceof BoxError && error.code === 'OUTPUT_LIMIT') return 'wrote too much'
    throw error
  }
}

for (const code of [
  'read a b c; echo $((a + b + c))',
  'id -u; touch /etc/passwd; echo "status $?"',
  'wget -q http://example.org || exit 7',
  'kill -SEGV $$',
  'sleep 1000',
  'yes',
]) {
  console.log(`${code}  ->  ${(await judge(code)).replaceAll('\n', ' ')}`)
}
