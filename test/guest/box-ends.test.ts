/** Every way in which a box ends, and that it is listed, stopped, startable or gone afterwards as it should be. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startVmm } from '../../src/box/start.ts'
import type { BoxExit } from '../../src/box/vmm/launch.ts'
import { ProcessLock } from '../../src/host/process-lock.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Box, Runtime } from '../../src/index.ts'
import { run } from '../image/oracles.ts'

const CLI = fileURLToPath(new URL('../../dist/cli.js', import.meta.url))
const LIMIT_MS = 180_000
const scratch = mkdtempSync(join(tmpdir(), 'vitrine-ends-'))
const home = join(scratch, 'home')
const runtime = new Runtime({ home, defaults: { memoryMib: 192, diskGib: 1, network: 'none' } })
const started: Box[] = []

/** A small file system of our own for the home, so that it can be full. */
const noTmpfs =
  process.getuid?.() !== 0 || spawnSync('sh', ['-c', 'unshare -m true']).status !== 0
    ? 'mounting takes root'
    : undefined

beforeAll(async () => {
  await findKernel()
  mkdirSync(home)
  if (!noTmpfs) run('mount', ['-t', 'tmpfs', '-o', 'size=32m', 'vitrine-test', home])
  symlinkSync(kernelsFolder(), join(home, 'kernels'))
})
afterAll(async () => {
  for (const box of started) await box.remove({ force: true }).catch(() => {})
  if (!noTmpfs) run('umount', ['-l', home])
  rmSync(scratch, { recursive: true, force: true })
}, LIMIT_MS)

async function until(what: string, holds: () => boolean): Promise<void> {
  // Less than the limit of a test, so that it says what did not happen.
  for (const end = Date.now() + LIMIT_MS / 2; !holds(); await sleep(20))
    if (Date.now() > end) throw new Error(`never: ${what}`)
}

const exitOf = (box: Box): Promise<BoxExit> => new Promise(resolve => box.once('exit', resolve))
const environment = { ...process.env, VITRINE_HOME: home }

/** Runs the command line in another process. */
function cli(...args: string[]): { stdout: string; stderr: string; status: number | null } {
  return spawnSync(process.execPath, [CLI, ...args], { encoding: 'utf8', env: environment, timeout: LIMIT_MS })
}

/** Processes of a VMM that are children of `parent`. */
const vmmsOf = (parent: number): number[] =>
  readdirSync('/proc')
    .filter(name => /^\d+$/.test(name))
    .map(Number)
    .filter(pid => {
      try {
        const ppid = Number(/\) \S (\d+)/.exec(readFileSync(`/proc/${pid}/stat`, 'latin1'))?.[1])
        return ppid === parent && readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes('vmm.process')
      } catch {
        // It ended meanwhile.
        return false
      }
    })

describe('a box whose start was killed', () => {
  it('is not taken by a VMM that nobody waits for any more', { timeout: LIMIT_MS * 2 }, async () => {
    const box = await Box.create({ name: 'orphaned', detach: true }, runtime)
    started.push(box)
    const locked = (): boolean => ProcessLock.isHeld(box.folder.vmmLock)
    for (let attempt = 1; ; attempt++) {
      await box.stop()
      const starter = spawn(process.execPath, [CLI, 'start', box.name], { env: environment, stdio: 'ignore' })
      const ended = once(starter, 'close')
      await until('it has a VMM', () => vmmsOf(starter.pid!).length > 0)
      const [orphan] = vmmsOf(starter.pid!)
      // It knows its box then, and is stopped before it has the box's lock; or too late.
      await sleep(attempt * 5)
      process.kill(orphan!, 'SIGSTOP')
      await sleep(500)
      const isInTime = !locked()
      starter.kill('SIGKILL')
      await ended
      const before = new Set(vmmsOf(process.pid))
      const start = isInTime ? box.start() : undefined
      if (start) await until('there is another one', () => vmmsOf(process.pid).some(pid => !before.has(pid)))
      process.kill(orphan!, 'SIGCONT')
      await start
      expect((await box.exec('echo', ['here'])).stdout).toBe('here\n')
      if (isInTime && attempt >= 3) break
      if (attempt === 20) throw new Error('no VMM could be stopped in time')
    }
    await box.remove({ force: true })
  })
})

describe('a box that another process made', () => {
  it('ends with its owner, is listed, starts again, and stops when nobody uses it', {
    timeout: LIMIT_MS * 2,
  }, async () => {
    const args = ['run', '--cold', '--name', 'owned', '--network', 'none', '-m', '192M', '--disk', '1', '--idle', '2s']
    const script = 'echo kept > /root/kept; sync; echo ready; sleep 1000'
    const owner: ChildProcess = spawn(process.execPath, [CLI, ...args, '--', 'sh', '-c', script], { env: environment })
    await new Promise(resolve => owner.stdout!.once('data', resolve))
    const box = await Box.get('owned', runtime)
    started.push(box)
    expect((await box.vmm()).pid).toBeGreaterThan(0)
    const exited = exitOf(box)
    owner.kill('SIGKILL')
    expect(await exited).toMatchObject({ reason: 'owner-gone' })
    await until('stopped', () => box.state === 'stopped')
    expect(box.lastExit).toMatchObject({ reason: 'owner-gone' })
    expect((await Box.list(runtime)).map(({ name }) => name)).toEqual(['owned'])
    // Any process may start it again; its files are there. While somebody is connected it is not idle.
    expect(await box.files.readText('/root/kept')).toBe('kept\n')
    await sleep(4000)
    expect(box.state).toBe('running')
    box.close()
    const watching = await Box.get('owned', runtime)
    const reason = exitOf(watching)
    await watching.vmm()
    expect(await reason).toMatchObject({ reason: 'idle' })
    await watching.remove()
    expect(await Box.list(runtime)).toEqual([])
  })

  it('is taken away without a word when it is interrupted while it boots', { timeout: LIMIT_MS }, async () => {
    const args = ['run', '--cold', '--network', 'none', '-m', '192M', '--disk', '1', '--', 'true']
    const owner = spawn(process.execPath, [CLI, ...args], { env: environment })
    let said = ''
    for (const stream of [owner.stdout, owner.stderr]) stream.on('data', chunk => (said += chunk))
    const ended = new Promise<number | null>(resolve => owner.once('close', resolve))
    let made: Box[] = []
    for (; made[0] === undefined || !existsSync(made[0].folder.controlSocket); await sleep(20))
      made = await Box.list(runtime)
    owner.kill('SIGINT')
    expect([await ended, said]).toEqual([130, ''])
    expect(await Box.list(runtime)).toEqual([])
    await until('the VMM is gone', () => made[0]!.state === 'stopped')
  })

  it('lives on when it is detached, is reached by any process, and goes when its time is over', {
    timeout: LIMIT_MS,
  }, async () => {
    const args = [
      '--cold',
      '--name',
      'apart',
      '--network',
      'none',
      '-m',
      '192M',
      '--disk',
      '1',
      '--rm',
      '--timeout',
      '15s',
    ]
    const made = cli('run', '-d', ...args, '--', 'sh', '-c', 'echo from the command; sleep 1000')
    expect([made.stdout, made.stderr]).toEqual(['apart\n', ''])
    const box = await Box.get('apart', runtime)
    started.push(box)
    expect(box.state).toBe('running')
    const exited = exitOf(box)
    // A line may come in pieces.
    const logged = { console: '', output: '' }
    box.on('log', ({ stream, text }) => {
      logged[stream] += text
    })
    expect((await box.exec('sh', ['-c', 'echo to the console > /dev/console'])).exitCode).toBe(0)
    await until('the console', () => logged.console.includes('to the console'))
    // The VMM has given up what it does not need.
    const status = readFileSync(`/proc/${(await box.vmm()).pid}/status`, 'utf8')
    expect(status).toMatch(/^NoNewPrivs:\s+1$/m)
    expect(status).toMatch(/^Seccomp:\s+2$/m)
    const metrics = await box.metrics()
    expect(metrics).toMatchObject({
      guest: { execs: { started: 2, running: 1, failed: 0 } },
      stages: { readyMs: expect.any(Number) },
    })
    expect(metrics.exits).toBeGreaterThan(100)
    expect(metrics.guest!.memoryTotal).toBeGreaterThan(100 * 2 ** 20)
    expect(metrics.disk.readBytes).toBeGreaterThan(100_000)
    await until('the output', () => cli('logs', 'apart').stdout === 'from the command\n')
    expect(await exited).toMatchObject({ reason: 'timeout' })
    await until('removed', () => !existsSync(box.folder.path))
    expect(await Box.list(runtime)).toEqual([])
    await expect(Box.get('apart', runtime)).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })
})

describe('a guest whose agent never answers', () => {
  it('is given up with a typed error that says where to look', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ name: 'mute', template: false }, runtime)
    started.push(box)
    const kernel = await findKernel()
    const initrd = join(scratch, 'mute.cpio')
    const init = new TextEncoder().encode('#!/bin/sh\necho I say nothing more; exec sleep 1000\n')
    writeFileSync(initrd, buildInitramfs({ init, busybox: '/bin/busybox' }))
    const plan = { kernel: kernel.path, initrd, accel: 'soft', kernelArguments: [], silenceMs: 5000 } as const
    const failure = await startVmm(box.folder, Promise.resolve(plan)).catch((error: unknown) => error)
    expect(failure).toMatchObject({
      code: 'GUEST_NOT_READY',
      message: expect.stringContaining('vitrine logs --console mute'),
    })
    await until('stopped', () => box.state === 'stopped')
    expect(cli('logs', '--console', 'mute').status).toBe(0)
    await box.remove()
  })
})

describe.skipIf(noTmpfs)('a full disk under the home', () => {
  it('leaves boxes listed, stoppable and startable', { timeout: LIMIT_MS * 3 }, async () => {
    const box = await Box.create({ name: 'full', template: false }, runtime)
    started.push(box)
    await box.files.write('/root/kept', 'kept')
    await box.exec('sync')
    // More than the host has. The guest's kernel may take it all and lose it later, so what counts are the errors it got.
    await box.files.write('/tmp/block', randomBytes(2 ** 20))
    await box.exec('sh', ['-c', 'i=0; while [ $i -lt 40 ]; do cat /tmp/block; i=$((i+1)); done > /root/big; sync'])
    expect((await box.metrics()).counters['blk0.ioErrors']).toBeGreaterThan(0)
    expect(cli('ps').stdout).toMatch(/full .* running/)
    await expect(Box.create({ name: 'more', template: false }, runtime)).rejects.toMatchObject({ code: 'NO_SPACE' })
    await box.stop()
    expect(cli('ps', '--all').stdout).toMatch(/full .* stopped/)
    expect(spawnSync('qemu-img', ['check', '-q', box.folder.disk]).status).toBeLessThanOrEqual(3)
    run('mount', ['-o', 'remount,size=256m', home])
    expect(await box.files.readText('/root/kept')).toBe('kept')
    expect((await box.exec('sh', ['-c', 'rm -f /root/big && sync && echo again > /root/again'])).exitCode).toBe(0)
    await box.stop()
    await box.remove()
  })
})

describe('a box with a command of its own', () => {
  it('stops when the command ends, but not under others who run something in it', { timeout: LIMIT_MS }, async () => {
    const box = await Box.create({ command: ['sh', '-c', 'sleep 1; echo over'] }, runtime)
    started.push(box)
    const exited = exitOf(box)
    // Started for this, it runs its command beside it.
    const { stdout } = await box.exec('sh', ['-c', 'sleep 3; echo through'])
    expect(stdout).toBe('through\n')
    expect(await exited).toMatchObject({ reason: 'command-ended', exitCode: 0 })
  })
})
