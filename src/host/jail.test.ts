import { execFileSync, spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { describe, expect, it } from 'vitest'
import { DENIED } from './jail.ts'

const MODULE = fileURLToPath(new URL('jail.ts', import.meta.url))
const supported = process.platform === 'linux' && process.arch === 'x64'

/** Runs a program that locks itself up first, with threads that were there before. */
function jailed(script: string): { stdout: string; stderr: string; status: number | null } {
  const code = `
    import { Worker } from 'node:worker_threads'
    import { readFileSync, readdirSync, writeFileSync, mkdtempSync } from 'node:fs'
    import { spawnSync } from 'node:child_process'
    import { createServer } from 'node:net'
    const worker = new Worker('setInterval(() => {}, 1000)', { eval: true })
    await new Promise(resolve => worker.once('online', resolve))
    const { lockUp } = await import(${JSON.stringify(MODULE)})
    const jail = lockUp()
    ${script}
    await worker.terminate()`
  return spawnSync(process.execPath, ['--import', 'tsx', '--input-type=module', '-e', code], { encoding: 'utf8' })
}

describe.skipIf(!supported)('a jail', () => {
  it('names the system calls as the kernel does', () => {
    const headers = execFileSync('gcc', ['-E', '-dM', '-include', 'sys/syscall.h', '-x', 'c', '/dev/null'], {
      encoding: 'utf8',
    })
    const known = new Map(
      [...headers.matchAll(/^#define __NR_(\w+) (\d+)$/gm)].map(([, name, number]) => [name, Number(number)]),
    )
    expect(Object.entries(DENIED).filter(([name, number]) => known.get(name) !== number)).toEqual([])
  })

  it('holds in every thread, and lets Node live', { timeout: 60_000 }, () => {
    const { stdout, stderr } = jailed(`
      const statuses = readdirSync('/proc/self/task').map(id => readFileSync('/proc/self/task/' + id + '/status', 'utf8'))
      const count = pattern => statuses.filter(text => pattern.test(text)).length
      const child = spawnSync('true')
      const folder = mkdtempSync('/tmp/vitrine-jail-')
      writeFileSync(folder + '/file', 'x')
      const server = createServer().listen(0, '127.0.0.1')
      await new Promise(resolve => server.once('listening', resolve))
      server.close()
      const { rmSync } = await import('node:fs')
      rmSync(folder, { recursive: true })
      console.log(JSON.stringify({ jail, threads: statuses.length, filtered: count(/^Seccomp:\\s+2$/m), error: child.error?.code,
        core: /Max core file size +0 /.test(readFileSync('/proc/self/limits', 'utf8')), mask: process.umask() }))`)
    expect(stderr).toBe('')
    const seen = JSON.parse(stdout) as { threads: number; filtered: number }
    expect(seen).toMatchObject({
      jail: { noNewPrivileges: true, systemCallFilter: true },
      error: 'EPERM',
      core: true,
      mask: 0o77,
    })
    expect(seen.threads).toBeGreaterThan(5)
    expect(seen.filtered).toBe(seen.threads)
  })
})
