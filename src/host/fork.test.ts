import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { forkIsAvailable } from './fork.ts'
import { FORKABLE_NODE_OPTIONS } from './forkable.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-fork-'))
const BUNDLE_URL = "const bundleUrl = require('node:url').pathToFileURL(__filename).href"
const MODULES = fileURLToPath(new URL('../../node_modules', import.meta.url))

// As the build does it: what compiles TypeScript on the fly has a thread, and there may be none.
beforeAll(() => {
  const contents = "export * from './fork.ts'; export * from './jail.ts'; export * from './heap.ts'"
  buildSync({
    stdin: { contents, resolveDir: fileURLToPath(new URL('.', import.meta.url)) },
    ...{ outfile: join(folder, 'host.cjs'), bundle: true, platform: 'node', format: 'cjs' },
    ...{ define: { 'import.meta.url': 'bundleUrl' }, banner: { js: BUNDLE_URL } },
  })
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/**
 * Runs `parent`, in which `forked(child)` forks and gives how the child, which runs a function of its own, ended. What either prints with `say` comes
 * back, by who said it.
 */
function run(parent: string, options: readonly string[] = FORKABLE_NODE_OPTIONS) {
  const script = join(folder, 'script.cjs')
  writeFileSync(
    script,
    `'use strict'
    const fs = require('node:fs')
    const net = require('node:net')
    const { forkProcess, childEnd, processAge, standAlone, openPipe, dieWith, lockUp, tidyHeap } = require('./host.cjs')
    const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))
    const say = value => fs.writeSync(1, JSON.stringify(value) + '\\n')
    const forked = child => {
      const pid = forkProcess()
      if (pid !== 0) return pid
      void child()
      return 0
    }
    void (async () => { ${parent} })().catch(error => { say({ error: error.message }); process.exit(1) })`,
  )
  const { stdout, stderr, status } = spawnSync(process.execPath, [...options, script], {
    ...{ encoding: 'utf8', timeout: 60_000, env: { ...process.env, NODE_PATH: MODULES, NODE_OPTIONS: '' } },
  })
  const said = stdout
    .split('\n')
    .filter(line => line !== '')
    .map(line => JSON.parse(line) as unknown)
  return { said, stderr, status }
}

describe.skipIf(!forkIsAvailable())('a forked Node', () => {
  it('has timers, sockets, threads, files, a collector and random numbers of its own', () => {
    const { said, stderr } = run(`
      lockUp()
      tidyHeap()
      const parent = process.pid
      const numbers = []
      for (let i = 0; i < 3; i++) {
        const pid = forked(async () => {
          const before = performance.now()
          await sleep(20)
          const path = ${JSON.stringify(folder)} + '/socket' + i
          const server = net.createServer(socket => socket.on('data', data => socket.end('so ' + data)))
          await new Promise(resolve => server.listen(path, resolve))
          const echo = await new Promise(resolve => net.connect(path).on('data', data => resolve(String(data))).end('hi'))
          server.close()
          const file = await fs.promises.readFile('/etc/passwd', 'utf8')
          let garbage = []
          for (let n = 0; n < 2e6; n++) { garbage.push({ n }); if (garbage.length > 1e5) garbage = [] }
          const { Worker } = require('node:worker_threads')
          const answer = await new Promise((resolve, reject) =>
            new Worker("require('node:worker_threads').parentPort.postMessage(6 * 7)", { eval: true }).on('message', resolve).on('error', reject))
          say({ slept: performance.now() - before >= 19, echo, file: file.includes('root'), answer,
            own: process.pid !== parent && process.ppid === parent && String(process.pid) === fs.readlinkSync('/proc/self'),
            young: processAge() < process.uptime() * 1000, random: require('node:crypto').randomBytes(8).toString('hex') })
          process.exit(10 + i)
        })
        if (pid === 0) return
        say(childEnd(pid))
      }`)
    expect(stderr).toBe('')
    expect(said).toHaveLength(6)
    for (let i = 0; i < 3; i++) {
      const own = { slept: true, echo: 'so hi', file: true, answer: 42, own: true, young: true }
      expect(said[i * 2]).toMatchObject(own)
      expect(said[i * 2 + 1]).toBe(`exit status ${10 + i}`)
    }
    expect(new Set([0, 2, 4].map(i => (said[i] as { random: string }).random)).size).toBe(3)
  })

  it('ends with a status, its listeners heard, however it ends', () => {
    const { said, stderr } = run(`
      const ends = [
        async () => {},
        async () => { process.exitCode = 3 },
        async () => { await sleep(5); process.exit(4) },
        async () => { await sleep(5); throw new Error('lost promise') },
        async () => { setTimeout(() => { throw new Error('lost throw') }, 5) },
        async () => { process.kill(process.pid, 'SIGTERM'); await sleep(1000) },
      ]
      for (const end of ends) {
        const pid = forked(async () => {
          process.on('exit', code => say({ exit: code }))
          await end()
        })
        if (pid === 0) return
        say(childEnd(pid))
      }`)
    expect(said).toEqual([
      ...[{ exit: 0 }, 'exit status 0', { exit: 3 }, 'exit status 3', { exit: 4 }, 'exit status 4'],
      ...[{ exit: 1 }, 'exit status 1', { exit: 1 }, 'exit status 1', 'signal 15'],
    ])
    expect(stderr).toContain('Error: lost promise')
    expect(stderr).toContain('Error: lost throw')
  })

  it('has an output and a session of its own, and dies with its parent while it is to', () => {
    const { said } = run(`
      const log = ${JSON.stringify(join(folder, 'log'))}
      const parent = process.pid
      const { read, write } = openPipe()
      const pid = forked(async () => {
        fs.closeSync(read)
        const middle = process.pid
        const inner = forkProcess()
        if (inner === 0) {
          dieWith(middle)
          await sleep(60_000)
          return
        }
        standAlone(fs.openSync(log, 'w'))
        process.stdout.write('to the log')
        await sleep(50)
        process.kill(process.pid, 'SIGKILL')
      })
      if (pid === 0) return
      fs.closeSync(write)
      say(childEnd(pid))
      // Both held an end of the pipe.
      say({ left: fs.readSync(read, Buffer.alloc(1)), log: fs.readFileSync(log, 'utf8') })`)
    expect(said).toEqual(['signal 9', { left: 0, log: 'to the log' }])
  })

  it('is refused where threads would be missed', () => {
    const refused = `try { forkProcess(); say('forked') } catch (error) { say({ code: error.code, message: error.message }) }`
    expect(run(refused, []).said).toEqual([
      { code: 'EOPNOTSUPP', message: expect.stringContaining('--single-threaded') },
    ])
    const { said } = run(`
      const { Worker } = require('node:worker_threads')
      const worker = new Worker('setInterval(() => {}, 1000)', { eval: true })
      await new Promise(resolve => worker.once('online', resolve))
      ${refused}
      await worker.terminate()`)
    expect(said).toEqual([{ code: 'EOPNOTSUPP', message: expect.stringContaining('threads of its own') }])
  })
})
