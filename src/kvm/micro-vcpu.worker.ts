/**
 * A worker that runs a micro-guest's vCPU with a `Recorder` behind it: for tests and examples with several vCPUs. Commands
 * come as messages, and each is answered by one.
 */
import { parentPort, workerData } from 'node:worker_threads'
import type { CpuRegisters, VcpuExit, VcpuTicket } from '../accel/contract.ts'
import { startFlat } from './micro-guest.ts'
import { Recorder } from './recorder.ts'
import { startUserMode } from './user-mode.ts'
import { KvmVcpu } from './vcpu.ts'

export interface MicroVcpuData {
  readonly ticket: VcpuTicket
}

export type MicroVcpuCommand =
  | { readonly do: 'reset' }
  | { readonly do: 'start-flat'; readonly rip: number }
  | { readonly do: 'start-user'; readonly registers: CpuRegisters }
  | { readonly do: 'run'; readonly stopAfterWrites?: number }
  | { readonly do: 'save' }
  | { readonly do: 'restore'; readonly state: Uint8Array }
  | { readonly do: 'read-registers' }
  | { readonly do: 'close' }

export interface MicroVcpuRun {
  readonly exit: VcpuExit
  readonly portWrites: readonly (readonly [port: number, size: number, value: number])[]
  readonly mmioWrites: readonly (readonly [address: number, size: number, value: bigint])[]
  readonly counters: Readonly<Record<string, number>>
}

const { ticket } = workerData as MicroVcpuData
const vcpu = new KvmVcpu(ticket)

function serve(command: MicroVcpuCommand): unknown {
  switch (command.do) {
    case 'reset':
      return vcpu.reset()
    case 'start-flat':
      return startFlat(vcpu, command.rip)
    case 'start-user':
      return startUserMode(vcpu, command.registers)
    case 'run': {
      const io = new Recorder()
      io.stopAfterWrites = command.stopAfterWrites ?? Number.POSITIVE_INFINITY
      const exit = vcpu.run(io)
      return { exit, portWrites: io.portWrites, mmioWrites: io.mmioWrites, counters: vcpu.counters() }
    }
    case 'save':
      return vcpu.save()
    case 'restore':
      return vcpu.restore(command.state)
    case 'read-registers':
      return vcpu.readRegisters()
    case 'close':
      vcpu.close()
      parentPort?.close()
  }
}

parentPort?.on('message', (command: MicroVcpuCommand) => {
  const answer = serve(command)
  parentPort?.postMessage(answer)
})
