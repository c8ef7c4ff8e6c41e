/** Type-checks, lints and checks formatting: `npm run check`. Exits non-zero at the first that fails. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))
const STEPS: readonly (readonly [string, ...string[]])[] = [
  ['tsc', '--noEmit'],
  ['biome', 'ci', '--error-on-warnings', '.'],
]

for (const [command, ...args] of STEPS) {
  const { status } = spawnSync(`${ROOT}node_modules/.bin/${command}`, args, { cwd: ROOT, stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
}
