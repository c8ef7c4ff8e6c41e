/** Our side: the vCPU of src/kvm with a handler that does as little as the C driver's. */
import type { IoHandler, SystemRegisters } from '../../src/accel/contract.ts'
import { KvmVcpu } from '../../src/kvm/vcpu.ts'
import { KvmVirtualMachine } from '../../src/kvm/vm.ts'
import type { GuestMemory } from '../../src/memory/guest-memory.ts'
import { type ExitKind, startState } from './guest.ts'

/** Counts writes and asks for a stop after a number of them. */
class CountingHandler implements IoHandler {
  left = 0
  sink = 0
  stopRequested = false

  portRead(): number {
    return 0xff
  }
  portWrite(port: number, _size: number, value: number): void {
    this.sink = (this.sink + port + value) | 0
    this.#count()
  }
  mmioRead(): void {}
  mmioWrite(address: number, _size: number, data: DataView): void {
    this.sink = (this.sink + address + data.getUint32(0, true)) | 0
    this.#count()
  }
  #count(): void {
    if (--this.left === 0) this.stopRequested = true
  }
}

export class OurDriver {
  readonly #vm: KvmVirtualMachine
  readonly #vcpu: KvmVcpu
  readonly #reset: SystemRegisters
  readonly #io = new CountingHandler()

  constructor(memory: GuestMemory) {
    this.#vm = KvmVirtualMachine.create({ memory, cpus: 1, bare: true })
    this.#vcpu = new KvmVcpu(this.#vm.vcpuTicket(0))
    this.#vcpu.reset()
    this.#reset = this.#vcpu.readSystemRegisters()
  }

  /** The registers that the C driver starts from, too. */
  get resetRegisters(): SystemRegisters {
    return this.#reset
  }

  /** The native structures of a start state: written to the vCPU and read back, so that both sides have the same bytes. */
  nativeStart(kind: ExitKind): Uint8Array {
    this.#prepare(kind)
    return this.#vcpu.nativeRegisters()
  }

  #prepare(kind: ExitKind): void {
    const { system, registers } = startState(kind, this.#reset)
    this.#vcpu.writeSystemRegisters(system)
    this.#vcpu.writeRegisters(registers)
  }

  /** Makes `exits` exits; microseconds for each. */
  measure(kind: ExitKind, exits: number): number {
    this.#prepare(kind)
    this.#io.left = exits
    this.#io.stopRequested = false
    const start = performance.now()
    const exit = this.#vcpu.run(this.#io)
    const elapsed = performance.now() - start
    if (exit.reason !== 'stopped') throw new Error(`the guest ended with '${exit.reason}'`)
    return (elapsed * 1000) / exits
  }

  close(): void {
    this.#vm.close()
  }
}
