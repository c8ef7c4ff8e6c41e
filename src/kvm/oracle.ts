/**
 * The hardware as an oracle: runs a few instructions on the real processor, at privilege level 3 in 64-bit mode, from a
 * given state, and tells the state after them or the fault. It works on any /dev/kvm that runs micro-guests; the software
 * CPU is compared with it.
 *
 *   const oracle = HardwareOracle.open()
 *   const result = oracle.run({ code: Uint8Array.of(0x48, 0x01, 0xd8), general: { rax: 1n, rbx: 2n } })   // add rax, rbx
 *   result.fault === undefined && result.general[0] === 3n
 *   oracle.close()
 *
 * RAM from USER_BASE (2 MiB) to `size` is the snippet's, readable, writable and executable; the code is put at
 * `ORACLE_CODE` and the stack starts below `ORACLE_STACK`. Anything else below 3 GiB faults. Memory keeps its contents
 * from run to run: write what matters with `memory` or through `guest`.
 *
 * Instructions that the guest's CPUID lacks may still run, since nothing intercepts them at level 3 (on kvm-pvm CPUID ends
 * at SSE2, yet SSE4 runs); CPUID itself and RDTSC are not comparable. Code that loops for ever blocks the caller.
 */
import { GENERAL_REGISTERS, type GeneralRegister, type IoHandler, type SystemRegisters } from '../accel/contract.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { KvmError } from './errors.ts'
import { ioctl } from './ioctl.ts'
import { XSAVE } from './structs.ts'
import { USER_BASE, USER_MODE_MIB, userModeSystemRegisters, userModeTrap, writeUserModeTables } from './user-mode.ts'
import { KvmVcpu, type KvmVcpuDetail } from './vcpu.ts'
import { KvmVirtualMachine } from './vm.ts'

export const ORACLE_CODE = USER_BASE
export const ORACLE_STACK = USER_BASE + 0x10_0000
export const ORACLE_DATA = USER_BASE + 0x10_0000

/** INT3 follows the snippet: its vector and its place mean that the snippet came to its end. */
const END_VECTOR = 3
const END = Uint8Array.of(0xcc)
const PAGE_FAULT = 14

/** In an XSAVE area: 512 bytes as FXSAVE writes them, then XSTATE_BV (SDM volume 1, 13.4). */
const FXSAVE_SIZE = 512
const XSTATE_BV = 512
const X87_AND_SSE = 3n
const MXCSR = 24
const FCW = 0

export interface OracleInput {
  /** Instructions, run from ORACLE_CODE until they fault or flow off their end. */
  readonly code: Uint8Array
  /** Registers by name; the others are 0, RSP is ORACLE_STACK. */
  readonly general?: Readonly<Partial<Record<GeneralRegister, bigint>>>
  /** Default: 2, all clear. */
  readonly rflags?: bigint
  /** x87, MXCSR and XMM registers as FXSAVE64 lays them out. Default: as after FNINIT, MXCSR 0x1F80, XMM zero. */
  readonly fxsave?: Uint8Array
  /** Written before the run. */
  readonly memory?: readonly { readonly address: number; readonly bytes: Uint8Array }[]
}

export interface OracleFault {
  readonly vector: number
  readonly errorCode: number | undefined
  /** The address of a page fault; 0 for other vectors. */
  readonly cr2: bigint
}

export interface OracleResult {
  /** Undefined when the snippet came to its end. */
  readonly fault: OracleFault | undefined
  /** RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8..R15. */
  readonly general: readonly bigint[]
  /** Of the faulting instruction (or after a trap), or just after the snippet. */
  readonly rip: bigint
  readonly rflags: bigint
  /** 512 bytes. */
  readonly fxsave: Uint8Array
}

const NO_IO: IoHandler = {
  portRead: () => 0xffff_ffff,
  portWrite: () => {},
  mmioRead: () => {},
  mmioWrite: () => {},
  stopRequested: false,
}

/** A fresh FXSAVE image: as after FNINIT, with the SSE exceptions masked. */
export function initialFxsave(): Uint8Array {
  const image = new Uint8Array(FXSAVE_SIZE)
  const view = new DataView(image.buffer)
  view.setUint16(FCW, 0x37f, true)
  view.setUint32(MXCSR, 0x1f80, true)
  return image
}

export class HardwareOracle {
  /** Its RAM, for looking at what a snippet wrote. */
  readonly guest: GuestMemory
  readonly #vm: KvmVirtualMachine
  readonly #vcpu: KvmVcpu
  readonly #system: SystemRegisters
  readonly #fd: number
  readonly #xsaveSize: number

  private constructor(guest: GuestMemory, vm: KvmVirtualMachine) {
    const ticket = vm.vcpuTicket(0)
    const detail = ticket.detail as KvmVcpuDetail
    this.guest = guest
    this.#vm = vm
    this.#vcpu = new KvmVcpu(ticket)
    this.#fd = detail.fd
    this.#xsaveSize = detail.shape.xsaveSize
    this.#vcpu.reset()
    this.#system = userModeSystemRegisters(this.#vcpu.readSystemRegisters())
  }

  /** Throws a KvmError when there is no /dev/kvm to use. On the main thread only. */
  static open(): HardwareOracle {
    const guest = GuestMemory.create(USER_MODE_MIB)
    writeUserModeTables(guest)
    return new HardwareOracle(guest, KvmVirtualMachine.create({ memory: guest, cpus: 1, bare: true }))
  }

  run(input: OracleInput): OracleResult {
    const { code, general = {}, rflags = 2n, fxsave = initialFxsave(), memory = [] } = input
    if (fxsave.length !== FXSAVE_SIZE) throw new KvmError('BAD_ARGUMENT', 'an FXSAVE image has 512 bytes')
    for (const { address, bytes } of memory) this.guest.write(address, bytes)
    this.guest.write(ORACLE_CODE, code)
    this.guest.write(ORACLE_CODE + code.length, END)
    this.#vcpu.writeSystemRegisters(this.#system)
    this.#vcpu.writeRegisters({
      general: GENERAL_REGISTERS.map(name => general[name] ?? (name === 'rsp' ? BigInt(ORACLE_STACK) : 0n)),
      rip: BigInt(ORACLE_CODE),
      rflags,
    })
    this.#writeFxsave(fxsave)
    const exit = this.#vcpu.run(NO_IO)
    const after = this.#vcpu.readRegisters()
    const trap = exit.reason === 'halted' ? userModeTrap(this.guest, after) : undefined
    if (!trap) {
      const why = exit.reason === 'internal-error' ? exit.message : exit.reason
      throw new KvmError('UNSUPPORTED', `the snippet ended in no known way: ${why}`)
    }
    const ended = trap.vector === END_VECTOR && trap.rip === BigInt(ORACLE_CODE + code.length + END.length)
    const cr2 = trap.vector === PAGE_FAULT ? this.#vcpu.readSystemRegisters().cr2 : 0n
    return {
      fault: ended ? undefined : { vector: trap.vector, errorCode: trap.errorCode, cr2 },
      general: after.general.map((value, i) => (i === 4 ? trap.rsp : value)),
      rip: ended ? trap.rip - BigInt(END.length) : trap.rip,
      rflags: trap.rflags,
      fxsave: this.#readFxsave(),
    }
  }

  #writeFxsave(image: Uint8Array): void {
    const area = new Uint8Array(Math.max(this.#xsaveSize, XSAVE.size))
    area.set(image)
    // Without its bit here, a component would be put in its initial state.
    new DataView(area.buffer).setBigUint64(XSTATE_BV, X87_AND_SSE, true)
    ioctl(this.#fd, 'KVM_SET_XSAVE', area)
  }

  #readFxsave(): Uint8Array {
    const area = new Uint8Array(Math.max(this.#xsaveSize, XSAVE.size))
    ioctl(this.#fd, this.#xsaveSize > XSAVE.size ? 'KVM_GET_XSAVE2' : 'KVM_GET_XSAVE', area)
    return area.slice(0, FXSAVE_SIZE)
  }

  close(): void {
    this.#vm.close()
  }
}
