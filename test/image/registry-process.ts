/** Debian's docker-registry on a free port of 127.0.0.1, with its data in a temporary folder. */
import { type ChildProcess, spawn } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

export interface RunningRegistry {
  /** `127.0.0.1:port`. */
  readonly host: string
  stop(): Promise<void>
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.on('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const { port } = server.address() as { port: number }
      server.close(() => resolve(port))
    })
  })
}

export async function startRegistry(folder: string): Promise<RunningRegistry> {
  const host = `127.0.0.1:${await freePort()}`
  const config = join(folder, 'registry.yml')
  writeFileSync(
    config,
    `version: 0.1
log: { level: error }
storage: { filesystem: { rootdirectory: ${join(folder, 'registry')} }, delete: { enabled: true } }
http: { addr: '${host}' }
`,
  )
  const child: ChildProcess = spawn('docker-registry', ['serve', config], { stdio: 'ignore' })
  const gone = new Promise<void>(resolve => child.once('exit', () => resolve()))
  const stop = (): Promise<void> => {
    child.kill()
    return gone
  }
  for (let i = 0; i < 100; i++) {
    const up = await fetch(`http://${host}/v2/`).then(
      response => response.ok,
      () => false,
    )
    if (up) return { host, stop }
    if (child.exitCode !== null) break
    await sleep(100)
  }
  child.kill()
  throw new Error('docker-registry does not come up')
}
