/** A vCPU's thread: opens the vCPU its ticket stands for, then serves `run` and the rest while the guest is out. */

import { parentPort } from 'node:worker_threads'
import * as Comlink from 'comlink'
import type { CpuRegisters, StepExit, SystemRegisters, Vcpu, VcpuExit, VcpuTicket } from '../accel/contract.ts'
import { openVcpu } from '../accel/select.ts'
import { workerEndpoint } from '../host/worker-endpoint.ts'
import type { EntryState } from './boot/cpu-state.ts'
import { Bus, type BusDescription } from './bus.ts'
import { CONSOLE_READY } from './vcpu-thread.ts'

const port = parentPort
if (!port) throw new Error('vcpu.worker.ts runs in a worker only')

let vcpu: Vcpu | undefined
let bus: Bus | undefined

function opened(): Vcpu {
  if (!vcpu) throw new Error('the vCPU has not been opened')
  return vcpu
}

const api = {
  async open(ticket: VcpuTicket, description: BusDescription): Promise<void> {
    bus = await Bus.open(description, () => port.postMessage(CONSOLE_READY))
    vcpu = await openVcpu(ticket)
  },

  /** Reset, and for the boot CPU the state that the kernel is entered with. */
  boot(entry: EntryState | undefined): void {
    const cpu = opened()
    cpu.reset()
    if (!entry) return
    cpu.writeSystemRegisters({ ...cpu.readSystemRegisters(), ...entry.system })
    cpu.writeRegisters(entry.registers)
  },

  /** Blocks this thread until the guest is left. */
  run(): VcpuExit {
    bus!.stopRequested = false
    return opened().run(bus!)
  },

  /** Undefined: this accelerator cannot. */
  step(count: number): StepExit | undefined {
    bus!.stopRequested = false
    return opened().step?.(bus!, count)
  },

  save: (): Uint8Array => opened().save(),
  restore: (state: Uint8Array): void => opened().restore(state),
  registers: () => ({ registers: opened().readRegisters(), system: opened().readSystemRegisters() }),
  setRegisters: (registers: CpuRegisters): void => opened().writeRegisters(registers),
  setSystemRegisters: (system: SystemRegisters): void => opened().writeSystemRegisters(system),
  forgetTranslations: (): void => opened().forgetTranslations(),
  counters: (): Record<string, number> => opened().counters(),

  close(): void {
    vcpu?.close()
    vcpu = undefined
  },
}

export type VcpuApi = typeof api

Comlink.expose(api, workerEndpoint(port))
