/** Everything that a vCPU is, as a blob, in the orders that KVM needs (Documentation/virt/kvm/api.rst). */
import { getCpuid, setCpuid } from './cpuid.ts'
import { KvmError } from './errors.ts'
import { type IoctlName, ioctl, ioctlValue } from './ioctl.ts'
import { getMsrs, MSR_TSC, MSR_TSC_DEADLINE, type Msr, setMsrs } from './msrs.ts'
import { decodeState, encodeState, section } from './state-blob.ts'
import * as structs from './structs.ts'

const MAGIC = 0x5543_564b // "KVCU"
const VERSION = 1
const WHAT = 'vCPU (KVM)'
const MAX_CPUID_ENTRIES = 256

const TAG = {
  cpuid: 1,
  mpState: 2,
  regs: 3,
  sregs: 4,
  xsave: 5,
  xcrs: 6,
  debugregs: 7,
  lapic: 8,
  tscKhz: 9,
  msrs: 10,
  events: 11,
} as const

/** What the state depends on besides the vCPU's descriptor. */
export interface VcpuStateShape {
  readonly msrIndices: Uint32Array
  /** Bytes of KVM_GET_XSAVE2, or 4096 where only KVM_GET_XSAVE exists. */
  readonly xsaveSize: number
  readonly localApic: boolean
}

function read(fd: number, name: IoctlName, size: number): Uint8Array {
  const bytes = new Uint8Array(size)
  ioctl(fd, name, bytes)
  return bytes
}

const xsaveRequest = (size: number): IoctlName => (size > structs.XSAVE.size ? 'KVM_GET_XSAVE2' : 'KVM_GET_XSAVE')

/**
 * MP_STATE first: reading it makes KVM process a pending INIT or SIPI, which changes registers. VCPU_EVENTS last: the
 * other reads may turn a pending exception into an injected one.
 */
export function saveVcpu(fd: number, shape: VcpuStateShape): Uint8Array {
  const sections = new Map<number, Uint8Array>()
  sections.set(TAG.mpState, read(fd, 'KVM_GET_MP_STATE', structs.MP_STATE.size))
  sections.set(TAG.regs, read(fd, 'KVM_GET_REGS', structs.REGS.size))
  sections.set(TAG.sregs, read(fd, 'KVM_GET_SREGS', structs.SREGS.size))
  sections.set(TAG.xsave, read(fd, xsaveRequest(shape.xsaveSize), shape.xsaveSize))
  sections.set(TAG.xcrs, read(fd, 'KVM_GET_XCRS', structs.XCRS.size))
  sections.set(TAG.debugregs, read(fd, 'KVM_GET_DEBUGREGS', structs.DEBUGREGS.size))
  if (shape.localApic) sections.set(TAG.lapic, read(fd, 'KVM_GET_LAPIC', structs.LAPIC.size))
  sections.set(TAG.tscKhz, new Uint8Array(new Uint32Array([tscKhz(fd)]).buffer))
  sections.set(TAG.cpuid, getCpuid(fd, MAX_CPUID_ENTRIES))
  sections.set(TAG.msrs, encodeMsrs(getMsrs(fd, [...shape.msrIndices])))
  sections.set(TAG.events, read(fd, 'KVM_GET_VCPU_EVENTS', structs.VCPU_EVENTS.size))
  return encodeState(MAGIC, VERSION, sections)
}

/** All of it is validated before any of it is applied. */
export function restoreVcpu(fd: number, blob: Uint8Array, shape: VcpuStateShape): void {
  const sections = decodeState(blob, MAGIC, VERSION, WHAT)
  const get = (tag: number, size: number, many = false) => section(sections, tag, size, WHAT, many)
  const cpuid = get(TAG.cpuid, structs.CPUID_ENTRY2.size, true)
  const mpState = get(TAG.mpState, structs.MP_STATE.size)
  const regs = get(TAG.regs, structs.REGS.size)
  const sregs = get(TAG.sregs, structs.SREGS.size)
  const xsave = get(TAG.xsave, shape.xsaveSize)
  const xcrs = get(TAG.xcrs, structs.XCRS.size)
  const debugregs = get(TAG.debugregs, structs.DEBUGREGS.size)
  const lapic = shape.localApic ? get(TAG.lapic, structs.LAPIC.size) : undefined
  const khz = new DataView(get(TAG.tscKhz, 4).buffer).getUint32(0, true)
  const msrs = decodeMsrs(get(TAG.msrs, structs.MSR_ENTRY.size, true))
  const events = get(TAG.events, structs.VCPU_EVENTS.size)

  // CPUID decides which of the registers below exist.
  setCpuid(fd, cpuid)
  if (khz !== 0 && khz !== tscKhz(fd)) scaleTsc(fd, khz)
  ioctl(fd, 'KVM_SET_MP_STATE', mpState)
  // REGS clears pending exceptions, which EVENTS brings back at the end.
  ioctl(fd, 'KVM_SET_REGS', regs)
  // SREGS sets the APIC base, and with it x2APIC mode, before LAPIC is interpreted by it.
  ioctl(fd, 'KVM_SET_SREGS', sregs)
  ioctl(fd, 'KVM_SET_XSAVE', xsave)
  ioctl(fd, 'KVM_SET_XCRS', xcrs)
  ioctl(fd, 'KVM_SET_DEBUGREGS', debugregs)
  if (lapic) ioctl(fd, 'KVM_SET_LAPIC', lapic)
  setMsrs(
    fd,
    msrs.filter(msr => msr.index !== MSR_TSC_DEADLINE),
  )
  // The deadline is armed against the LAPIC's timer mode and the TSC, so after both, in a batch of its own. Zero may mean
  // that it fired while being saved; the present time as deadline fires it again, which is harmless when it was not armed.
  const deadline = msrs.find(msr => msr.index === MSR_TSC_DEADLINE)
  if (deadline && lapic) {
    const now = msrs.find(msr => msr.index === MSR_TSC)?.value ?? 1n
    setMsrs(fd, [{ index: MSR_TSC_DEADLINE, value: deadline.value === 0n ? now : deadline.value }])
  }
  ioctl(fd, 'KVM_SET_VCPU_EVENTS', events)
  noteClockPause(fd)
}

function tscKhz(fd: number): number {
  try {
    return ioctlValue(fd, 'KVM_GET_TSC_KHZ')
  } catch (error) {
    // EIO: the host's TSC is unstable, and there is no rate to carry over.
    if (error instanceof KvmError && error.errno === 'EIO') return 0
    throw error
  }
}

function scaleTsc(fd: number, khz: number): void {
  try {
    ioctlValue(fd, 'KVM_SET_TSC_KHZ', khz)
  } catch {
    // Without TSC scaling the guest sees another rate; kvm-clock, which Linux prefers, corrects for it.
  }
}

/** Tells the guest's soft-lockup watchdog that it was paused. EINVAL: the guest has no kvm-clock yet. */
function noteClockPause(fd: number): void {
  try {
    ioctlValue(fd, 'KVM_KVMCLOCK_CTRL')
  } catch (error) {
    if (!(error instanceof KvmError && error.errno === 'EINVAL')) throw error
  }
}

function encodeMsrs(msrs: readonly Msr[]): Uint8Array {
  const bytes = new Uint8Array(msrs.length * structs.MSR_ENTRY.size)
  msrs.forEach(({ index, value }, i) => {
    structs.MSR_ENTRY.over(bytes.subarray(i * structs.MSR_ENTRY.size))
      .set('index', index)
      .set('data', value)
  })
  return bytes
}

function decodeMsrs(bytes: Uint8Array): Msr[] {
  const msrs: Msr[] = []
  for (let at = 0; at < bytes.length; at += structs.MSR_ENTRY.size) {
    const entry = structs.MSR_ENTRY.over(bytes.subarray(at))
    msrs.push({ index: entry.get('index'), value: entry.get('data') })
  }
  return msrs
}
