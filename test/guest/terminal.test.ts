/** An interactive shell in a box, driven through tmux: what a person at a terminal sees. */
import { execFileSync, spawnSync } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, it } from 'vitest'

const CLI = fileURLToPath(new URL('../../dist/cli.js', import.meta.url))
const SERVER = `vitrine-${process.pid}`
const LIMIT_MS = 170_000
const hasTmux = spawnSync('tmux', ['-V']).status === 0

const tmux = (...args: string[]): string => execFileSync('tmux', ['-L', SERVER, ...args], { encoding: 'utf8' })
const screen = (): string => tmux('capture-pane', '-p')
const type = (line: string): string => tmux('send-keys', line, 'Enter')

/** Waits until the screen shows it. */
async function shows(pattern: RegExp): Promise<void> {
  for (const end = Date.now() + LIMIT_MS; !pattern.test(screen()); await sleep(100)) {
    if (Date.now() > end) throw new Error(`${pattern} never came; the screen shows:\n${screen()}`)
  }
}

afterAll(() => {
  if (hasTmux) spawnSync('tmux', ['-L', SERVER, 'kill-server'])
})

it.skipIf(!hasTmux)('a shell feels local', { timeout: LIMIT_MS }, async () => {
  const command = `'${process.execPath}' '${CLI}' run -it -m 256M; echo "status $?"; sleep 1000`
  tmux('new-session', '-d', '-x', '100', '-y', '30', command)
  await shows(/~ #$/m)
  type('stty size')
  await shows(/^30 100$/m)
  type('sleep 1000')
  await shows(/sleep 1000$/m)
  await sleep(500)
  tmux('send-keys', 'C-c')
  type('echo "back $?"')
  await shows(/^back 130$/m)
  tmux('resize-window', '-x', '80', '-y', '24')
  await sleep(500)
  type('clear; stty size')
  await shows(/^24 80$/m)
  type('vi /etc/passwd')
  await shows(/^root:x:0:0[\s\S]*^~$/m)
  type(':q')
  type('exit 5')
  await shows(/^status 5$/m)
})
