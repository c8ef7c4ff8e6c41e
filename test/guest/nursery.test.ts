/** Forks that come from one process: each has a process of its own, and they are boxes like any others. */
import { spawn } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { MainLoop } from '../../src/host/main-loop.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Box, Runtime } from '../../src/index.ts'

const LIMIT_MS = 180_000
const home = mkdtempSync(join(tmpdir(), 'vitrine-nursery-'))
const settings = { memoryMib: 128, diskGib: 1, network: 'none', accel: 'soft' } as const
const runtime = new Runtime({ home, defaults: settings })
const environment = { ...process.env, VITRINE_HOME: home }

beforeAll(async () => {
  await findKernel()
  symlinkSync(kernelsFolder(), join(home, 'kernels'))
})
afterEach(async () => {
  for (const box of await Box.list(runtime)) await box.remove({ force: true }).catch(() => {})
})
afterAll(() => rmSync(home, { recursive: true, force: true }))

const text = async (box: Box, script: string): Promise<string> => String((await box.sh(script)).stdout).trim()

/** Command lines of the processes that work for this home, and of their parents. */
function processes(): { pid: number; parent: number; line: string }[] {
  return readdirSync('/proc').flatMap(name => {
    try {
      if (!/^\d+$/.test(name)) return []
      const line = readFileSync(`/proc/${name}/cmdline`, 'utf8')
      if (!line.includes(`${home}/`) || !/(?:vmm|nursery)\.process/.test(line)) return []
      const stat = readFileSync(`/proc/${name}/stat`, 'utf8')
      return [{ pid: Number(name), parent: Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1]), line }]
    } catch {
      return [] // it ended meanwhile
    }
  })
}

const sorted = (pids: readonly number[]): number[] => [...pids].sort((a, b) => a - b)
const pidsOf = async (boxes: readonly Box[]): Promise<number[]> =>
  sorted(await Promise.all(boxes.map(async box => (await box.vmm()).pid)))

describe.skipIf(!MainLoop.isAvailable || process.pid === 1)('forks', () => {
  it('have a process each, and nothing is left of what these came from', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ name: 'origin' }, runtime)
    await box.sh('echo one > /root/file; sync')
    const forks = await box.fork({ count: 4 })
    const pids = await pidsOf([box, ...forks])
    expect(new Set(pids).size).toBe(5)
    const found = processes()
    expect(sorted(found.map(({ pid }) => pid))).toEqual(pids)
    for (const fork of forks) {
      const { pid } = await fork.vmm()
      const shown = found.find(each => each.pid === pid)!
      expect(shown.line).toContain(fork.id)
      // Not ours: they would be if they had been spawned.
      expect(shown.parent).not.toBe(process.pid)
      expect(fork.bootStages!.readyMs).toBeGreaterThan(0)
      expect(readFileSync(fork.folder.vmmLog, 'utf8')).toBe('')
    }
    // They differ in what they should, and have what they share.
    const random = await Promise.all(forks.map(fork => text(fork, 'head -c 16 /dev/urandom | sha256sum')))
    expect(new Set(random).size).toBe(forks.length)
    for (const [i, fork] of forks.entries()) await fork.sh(`echo ${i} >> /root/file`)
    for (const [i, fork] of forks.entries()) expect(await text(fork, 'cat /root/file')).toBe(`one\n${i}`)
    expect(await text(box, 'cat /root/file')).toBe('one')
    // And end as they should.
    const exited = new Promise<unknown>(resolve => forks[0]!.once('exit', resolve))
    await forks[0]!.stop()
    expect(await exited).toMatchObject({ reason: 'stopped' })
    const killed = new Promise<unknown>(resolve => forks[1]!.once('exit', resolve))
    process.kill((await forks[1]!.vmm()).pid, 'SIGKILL')
    expect(await killed).toMatchObject({ reason: 'vmm-failed' })
    // What was stopped lost nothing; what was killed may have lost what it had not written out.
    expect(await text(forks[0]!, 'cat /root/file')).toBe('one\n0')
    expect(await text(forks[1]!, 'head -n 1 /root/file')).toBe('one')
  })

  it('work, are forked, saved and put aside themselves', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ name: 'origin' }, runtime)
    await box.exec('true')
    const [first, second] = await box.fork({ count: 2 })
    const sum = 'head -c 16777216 /dev/zero | sha256sum'
    const sums = await Promise.all([box, first!, second!].map(each => text(each, sum)))
    expect(sums[0]).toMatch(/^080acf35a507ac9849cfcba47dc2ad83e01b75663a516279c8b9d243b719643e/)
    expect(new Set(sums).size).toBe(1)
    await first!.sh('echo saved > /root/file')
    await first!.snapshot('then')
    await first!.sh('echo later > /root/file')
    const again = await first!.fork({ count: 2 })
    for (const fork of again) expect(await text(fork, 'cat /root/file')).toBe('later')
    const restored = await Box.restore(`${first!.name}@then`, {}, runtime)
    expect(await text(restored, 'cat /root/file')).toBe('saved')
    await first!.rollback('then')
    expect(await text(first!, 'cat /root/file')).toBe('saved')
    await again[0]!.pause({ release: true })
    expect(await text(again[0]!, 'cat /root/file')).toBe('later')
    expect((await again[1]!.metrics()).guest?.processes).toBeGreaterThan(0)
  })

  it('end with the process that made them, unless they are detached', { timeout: LIMIT_MS }, async () => {
    const program = `
      import { Box, Runtime } from ${JSON.stringify(new URL('../../dist/index.js', import.meta.url).href)}
      const runtime = new Runtime({ home: ${JSON.stringify(home)}, defaults: ${JSON.stringify(settings)} })
      const box = await Box.create({ name: 'origin', detach: true }, runtime)
      await box.exec('true')
      await box.fork({ count: 2, names: ['a', 'b'], detach: false })
      await box.fork({ count: 2, names: ['c', 'd'], detach: true })
      console.log('forked')
      setInterval(() => {}, 1000)`
    const owner = spawn(process.execPath, ['--input-type=module', '-e', program], {
      ...{ env: environment, stdio: ['ignore', 'pipe', 'inherit'] },
    })
    await new Promise(resolve => owner.stdout!.once('data', resolve))
    const get = (name: string): Promise<Box> => Box.get(name, runtime)
    const [a, b, c, d] = await Promise.all(['a', 'b', 'c', 'd'].map(get))
    for (const box of [a!, b!, c!, d!]) expect(box.state).toBe('running')
    owner.kill('SIGKILL')
    for (const end = Date.now() + LIMIT_MS / 3; a!.state !== 'stopped' || b!.state !== 'stopped'; await sleep(20))
      if (Date.now() > end) throw new Error('they never ended')
    for (const box of [a!, b!]) expect(box.lastExit).toMatchObject({ reason: 'owner-gone' })
    for (const box of [c!, d!]) expect(await text(box, 'echo lives')).toBe('lives')
    expect(await text(a!, 'echo again')).toBe('again')
  })

  it('are all gone when one of them cannot be', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ name: 'origin' }, runtime)
    await box.exec('true')
    const forking = box.fork({ count: 6 })
    forking.catch(() => {})
    // The first that comes to be is killed before it is ready.
    for (;;) {
      const born = processes().find(({ line }) => line.includes('vmm.process') && !line.includes(box.id))
      if (born) {
        process.kill(born.pid, 'SIGKILL')
        break
      }
      await sleep(1)
    }
    const outcome = await forking.then(
      () => 'done',
      (error: Error & { code?: string }) => error.code,
    )
    // It may have been ready by then.
    if (outcome !== 'done') {
      expect(outcome).toBe('VMM_FAILED')
      expect((await Box.list(runtime)).map(({ name }) => name)).toEqual(['origin'])
    }
    expect(await text(box, 'echo lives')).toBe('lives')
  })

  it('are spawned one by one where a machine has threads', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ name: 'origin', cpus: 2 }, runtime)
    await box.exec('true')
    const forks = await box.fork({ count: 2 })
    for (const fork of forks) expect(await text(fork, 'nproc')).toBe('2')
    const pids = await pidsOf(forks)
    for (const { pid, parent } of processes()) if (pids.includes(pid)) expect(parent).toBe(process.pid)
  })
})
