/**
 * The user-mode network: the same guest on ours, on QEMU's user network (slirp) and on passt, interleaved; and frames through our stack
 * without any guest, beside the cost of copying them in memory. The guests run on the software CPU and on QEMU's TCG; with
 * VITRINE_BENCH_ACCEL=kvm, which `--amd-host` sets, on KVM.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { type AddressInfo, connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Bench, BenchContext, Benchmark, Contestant } from '../harness/benchmark.ts'
import { FRAME_METRICS, sampleFrames, sampleMemcpy, startFramePeers } from './frames.ts'
import {
  type Accelerator,
  compilePingPong,
  GuestParts,
  type NetGuest,
  orUndo,
  startOurs,
  startPasst,
  startSlirp,
} from './guests.ts'
import { GUEST_METRICS, measuredIn, measureGuest, type Part, type Renewable } from './measures.ts'

const BOOTS = 3
const ON_KVM = process.env.VITRINE_BENCH_ACCEL === 'kvm'
/** In the emulated host V8 takes a dozen seconds to compile what each of our samples runs; they are thrown away, those of the peers as well. */
const WARMUP = ON_KVM ? 6 : 1
const FIRST_MS = 60_000
const SERVER_MS = 30_000
const PARTS: readonly Part[] = ['throughput', 'requests', 'connections', 'ping', 'frames']

function chosenParts(only: readonly string[] | undefined): readonly Part[] {
  const unknown = only?.find(name => !PARTS.some(part => part === name))
  if (unknown !== undefined) throw new Error(`'${unknown}' is no part of this: ${PARTS.join(', ')}`)
  return only === undefined ? PARTS : PARTS.filter(part => only.includes(part))
}

/** A port that nobody listens on now. */
async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise(resolve => server.close(resolve))
  return port
}

const answers = (port: number): Promise<boolean> =>
  new Promise(resolve => {
    const socket = connect(port, '127.0.0.1')
    const tell = (does: boolean) => () => {
      socket.destroy()
      resolve(does)
    }
    socket.once('connect', tell(true)).once('error', tell(false))
  })

/** A server that listens. One that ends before, because somebody has taken its port or for whatever reason, is an error that says so. */
async function startServer(command: string, args: readonly string[], port: number): Promise<ChildProcess> {
  const server = spawn(command, args, { stdio: ['ignore', 'ignore', 'pipe'] })
  let said = ''
  let ended: string | undefined
  server.stderr!.on('data', (data: Buffer) => {
    said += data
  })
  server.once('error', error => {
    ended = error.message
  })
  server.once('close', code => {
    ended ??= `status ${code}${said === '' ? '' : `: ${said.trim()}`}`
  })
  const end = Date.now() + SERVER_MS
  for (let listens = false; !listens; ) {
    listens = await answers(port)
    // One that answers may be somebody else's; ours has ended then, or is about to.
    await new Promise(resolve => setTimeout(resolve, 100))
    if (ended === undefined && Date.now() > end) ended = `it did not listen within ${SERVER_MS / 1000} s`
    if (ended !== undefined) {
      server.kill()
      throw new Error(`${command} cannot serve 127.0.0.1:${port}: ${ended}`)
    }
  }
  return server
}

/** QEMU's TCG hangs now and then while a guest boots. */
async function booted(name: string, log: BenchContext['log'], start: () => Promise<NetGuest>): Promise<NetGuest> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await start()
    } catch (error) {
      if (attempt >= BOOTS) throw error
      log(`${name}: ${(error as Error).message.split('\n')[0]}; once more`)
    }
  }
}

async function open({ log, only }: BenchContext): Promise<Bench> {
  const chosen = chosenParts(only)
  const frames = chosen.includes('frames')
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-net-'))
  const closers: (() => unknown)[] = [() => rmSync(folder, { recursive: true })]
  const close = async (): Promise<void> => {
    for (const each of closers.reverse()) await each()
  }
  try {
    const accel: Accelerator = ON_KVM ? 'kvm' : 'soft'
    const ports = { iperf: await freePort(), pingpong: await freePort() }
    for (const [port, command, ...args] of [
      [ports.iperf, 'iperf3', '-s', '-B', '127.0.0.1', '-p', String(ports.iperf)],
      [ports.pingpong, compilePingPong(folder), 'serve', String(ports.pingpong)],
    ] as [number, string, ...string[]][]) {
      const server = await startServer(command, args, port)
      closers.push(() => server.kill())
    }
    for (const peer of await startFramePeers()) closers.push(() => peer.kill())
    const parts = await GuestParts.make(folder)
    closers.push(() => parts.close())
    /** What belongs with the figures; hangs are counted there as they come. */
    const host: Record<string, string | number> = { accelerator: accel }
    const guest = async (name: string, start: typeof startOurs): Promise<Renewable> => {
      const boot = async (): Promise<NetGuest> => {
        log(`booting the guest on ${name}`)
        const started = await booted(name, log, () => start(parts, accel))
        // It has a network only when it answers over it.
        await orUndo(started.run('true', FIRST_MS), () => started.close())
        return started
      }
      let current = await boot()
      closers.push(() => current.close())
      return {
        get guest() {
          return current
        },
        renew: async why => {
          log(why)
          host[`hangs of ${name}`] = Number(host[`hangs of ${name}`] ?? 0) + 1
          await current.close()
          current = await boot()
        },
      }
    }
    const ours = await guest('ours', startOurs)
    const contestants: Contestant[] = [
      {
        name: 'ours',
        sample: async () => ({ ...(await measureGuest(ours, ports, chosen)), ...(frames ? sampleFrames() : {}) }),
      },
      { name: 'memcpy', sample: async () => (frames ? sampleMemcpy() : {}) },
    ]
    const missing: { name: string; reason: string }[] = []
    for (const [name, program, start] of [
      ['slirp', '/usr/bin/qemu-system-x86_64', startSlirp],
      ['passt', '/usr/bin/passt', startPasst],
    ] as const) {
      if (!existsSync(program)) missing.push({ name, reason: `${program} is not installed` })
      else {
        try {
          const peer = await guest(name, start)
          contestants.push({ name, sample: () => measureGuest(peer, ports, chosen) })
        } catch (error) {
          missing.push({ name, reason: `its guest does not work: ${(error as Error).message.split('\n')[0]}` })
        }
      }
    }
    const measures = [...measuredIn(chosen), ...(frames ? FRAME_METRICS.map(({ name }) => name) : [])]
    return { contestants, missing, measures, host, close }
  } catch (error) {
    await close()
    throw error
  }
}

export const benchmark: Benchmark = {
  summary: "the same guest on our network, QEMU's slirp and passt; frames through the stack against memcpy",
  metrics: [...GUEST_METRICS, ...FRAME_METRICS],
  runs: 7,
  warmup: WARMUP,
  open,
}
