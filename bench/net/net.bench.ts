/**
 * The user-mode network: the same guest on ours, on QEMU's user network (slirp) and on passt, interleaved; and frames through our stack
 * without any guest, beside the cost of copying them in memory. The guests run on the software CPU and on QEMU's TCG; with
 * VITRINE_BENCH_ACCEL=kvm, which `--amd-host` sets, on KVM.
 */
import { spawn } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
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
import { GUEST_METRICS, measuredIn, measureGuest, type Part, type Renewable, type ServerPorts } from './measures.ts'

const PORTS: ServerPorts = { iperf: 15_201, pingpong: 15_202 }
const BOOTS = 3
const FIRST_MS = 60_000
const PARTS: readonly Part[] = ['throughput', 'requests', 'connections', 'ping', 'frames']

function chosenParts(only: readonly string[] | undefined): readonly Part[] {
  const unknown = only?.find(name => !PARTS.some(part => part === name))
  if (unknown !== undefined) throw new Error(`'${unknown}' is no part of this: ${PARTS.join(', ')}`)
  return only === undefined ? PARTS : PARTS.filter(part => only.includes(part))
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
    const accel: Accelerator = process.env.VITRINE_BENCH_ACCEL === 'kvm' ? 'kvm' : 'soft'
    for (const [command, ...args] of [
      ['iperf3', '-s', '-B', '127.0.0.1', '-p', String(PORTS.iperf)],
      [compilePingPong(folder), 'serve', String(PORTS.pingpong)],
    ] as [string, ...string[]][]) {
      const server = spawn(command, args, { stdio: 'ignore' })
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
        sample: async () => ({ ...(await measureGuest(ours, PORTS, chosen)), ...(frames ? sampleFrames() : {}) }),
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
          contestants.push({ name, sample: () => measureGuest(peer, PORTS, chosen) })
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
  open,
}
