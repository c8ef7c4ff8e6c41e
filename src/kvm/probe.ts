/**
 * Is this KVM any good? Opening it says little: it may lack permission, capabilities, or the hardware itself. Where guest
 * code at privilege level 0 is emulated one instruction at a time (kvm-pvm does that), an ordinary kernel is hopeless, so
 * a micro-guest counts down at that level and the clock tells.
 */
import type { AcceleratorReport, Finding, IoHandler } from '../accel/contract.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { KvmError } from './errors.ts'
import { KVM } from './ioctls.ts'
import { CODE_ADDRESS, startFlat } from './micro-guest.ts'
import { KVM_DEVICE, KvmSystem } from './system.ts'
import { KvmVcpu } from './vcpu.ts'
import { KvmVirtualMachine } from './vm.ts'

/** Hardware does 10^9 a second, a KVM inside an emulated host 10^7, an emulated privilege level 0 less than 10^6. */
const ITERATIONS = 4_000
const SLOWEST_HARDWARE = 4e6
const ATTEMPTS = 3
const ENTRY_ATTEMPTS = 8

const SOFTWARE_REMEDY = 'the software CPU will be used; for speed, run on a host with VT-x or AMD-V'

/** A handler for guests that make no accesses. */
const NO_IO: IoHandler = {
  portRead: () => 0xffff_ffff,
  portWrite: () => {},
  mmioRead: (_address, size, data) => {
    for (let i = 0; i < size; i++) data.setUint8(i, 0xff)
  },
  mmioWrite: () => {},
  stopRequested: false,
}

/**
 * How many rounds of a two-instruction loop a guest does in a second at privilege level 0. What entering and leaving costs
 * is measured with a single round, and taken off: where KVM itself is emulated, that is the larger part.
 */
export function measureRing0(device?: string): number {
  const memory = GuestMemory.create(2)
  // dec ecx; jnz -3; hlt
  memory.write(CODE_ADDRESS, Uint8Array.of(0x49, 0x75, 0xfd, 0xf4))
  const vm = KvmVirtualMachine.create({ memory, cpus: 1, bare: true }, device)
  try {
    const vcpu = new KvmVcpu(vm.vcpuTicket(0))
    vcpu.reset()
    let shortest = Number.POSITIVE_INFINITY
    let longest = Number.POSITIVE_INFINITY
    let rate = 0
    // First, and several times: on a busy host one slow entry, taken off, would make any KVM look infinitely fast.
    for (let attempt = 0; attempt < ENTRY_ATTEMPTS; attempt++) shortest = Math.min(shortest, timeLoop(vcpu, 1))
    // The best of a few: anything else that the host does only makes it slower.
    for (let attempt = 0; attempt < ATTEMPTS && rate < SLOWEST_HARDWARE; attempt++) {
      longest = Math.min(longest, timeLoop(vcpu, ITERATIONS))
      // On hardware the difference drowns in the clock's noise: no less than a nanosecond a round.
      rate = ITERATIONS / Math.max(longest - shortest, ITERATIONS * 1e-9)
    }
    return rate
  } finally {
    vm.close()
  }
}

/** Seconds from entering the guest to its HLT. */
function timeLoop(vcpu: KvmVcpu, rounds: number): number {
  startFlat(vcpu, CODE_ADDRESS, { rcx: BigInt(rounds) })
  const start = performance.now()
  const exit = vcpu.run(NO_IO)
  const seconds = (performance.now() - start) / 1000
  if (exit.reason === 'halted') return seconds
  const why = exit.reason === 'internal-error' ? exit.message : exit.reason
  throw new KvmError('UNSUPPORTED', `the micro-guest did not finish: ${why}`)
}

/** 0 when what was opened is not KVM at all. */
function apiVersion(system: KvmSystem): number {
  try {
    return system.apiVersion()
  } catch {
    return 0
  }
}

const perSecond = (rate: number): string =>
  rate >= 1e8 ? 'more than 100 M/s' : `${(rate / 1e6).toFixed(rate < 1e7 ? 1 : 0)} M/s`

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** Looks at one thing after the other and stops at the first that rules KVM out. */
export function probeKvm(device: string = KVM_DEVICE): AcceleratorReport {
  const findings: Finding[] = []
  const report = (usable: boolean, runsMicroGuests: boolean, summary: string): AcceleratorReport => ({
    name: 'kvm',
    usable,
    runsMicroGuests,
    summary,
    findings,
  })
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    const detail = `KVM is for Linux on x86-64; this is ${process.platform} on ${process.arch}`
    findings.push({ what: 'platform', ok: false, detail, remedy: 'the software CPU will be used' })
    return report(false, false, detail)
  }

  let system: KvmSystem
  try {
    system = KvmSystem.open(device)
  } catch (error) {
    if (!(error instanceof KvmError)) throw error
    const [detail = '', remedy = ''] = error.message.split(/: (.*)/s)
    findings.push({ what: 'device', ok: false, detail, remedy })
    return report(false, false, error.code === 'FORBIDDEN' ? `${device} is forbidden` : `${device} is absent`)
  }
  try {
    findings.push({ what: 'device', ok: true, detail: `${device} opens for reading and writing` })
    const version = apiVersion(system)
    const versionOk = version === KVM.KVM_API_VERSION
    const newer = { remedy: 'a newer kernel is needed; until then the software CPU will be used' }
    const detail = version === 0 ? `${device} is not KVM` : String(version)
    findings.push({ what: 'API version', ok: versionOk, detail, ...(versionOk ? {} : newer) })
    if (!versionOk) return report(false, false, `API version ${version} is not ${KVM.KVM_API_VERSION}`)
    const missing = system.missingCapabilities()
    const names = missing.map(([name, use]) => `${name} (${use})`).join(', ')
    findings.push(
      missing.length === 0
        ? { what: 'capabilities', ok: true, detail: 'all that are needed' }
        : { what: 'capabilities', ok: false, detail: `missing: ${names}`, ...newer },
    )
    if (missing.length > 0) return report(false, false, 'capabilities are missing')
  } finally {
    system.close()
  }

  let rate: number
  try {
    rate = measureRing0(device)
  } catch (error) {
    findings.push({ what: 'micro-guest', ok: false, detail: messageOf(error), remedy: SOFTWARE_REMEDY })
    return report(false, false, 'a micro-guest does not run')
  }
  const loops = `a loop at privilege level 0 does ${perSecond(rate)}`
  if (rate < SLOWEST_HARDWARE) {
    const detail = `${loops}: it is emulated, one instruction at a time`
    findings.push({ what: 'micro-guest', ok: false, detail, remedy: SOFTWARE_REMEDY })
    return report(false, true, 'it emulates kernel code instead of running it')
  }
  findings.push({ what: 'micro-guest', ok: true, detail: loops })
  return report(true, true, 'runs guests on the processor itself')
}
