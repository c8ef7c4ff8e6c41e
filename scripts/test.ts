/** `npm test`: build, type-check, lint, check formatting, and run every test. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'

const ROOT = fileURLToPath(new URL('..', import.meta.url))

function step(...[command, ...args]: [string, ...string[]]): void {
  const { status } = spawnSync(command, args, { cwd: ROOT, stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
}

step('npm', 'run', '--silent', 'build')
step('npm', 'run', '--silent', 'check')
step('npx', 'vitest', 'run')
