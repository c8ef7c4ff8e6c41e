/** KVM's failures in words. */
import { KVM } from './ioctls.ts'
import type { StructView } from './layout.ts'
import type { RUN } from './structs.ts'

type RunView = StructView<(typeof RUN)['members']>

const hex = (bytes: Uint8Array): string => [...bytes].map(byte => byte.toString(16).padStart(2, '0')).join(' ')

const INTERNAL_ERRORS: Readonly<Record<number, string>> = {
  [KVM.KVM_INTERNAL_ERROR_EMULATION]: 'KVM met an instruction that it cannot emulate',
  [KVM.KVM_INTERNAL_ERROR_SIMUL_EX]: 'KVM met an exception while it delivered another',
  [KVM.KVM_INTERNAL_ERROR_DELIVERY_EV]: 'KVM could not deliver an event',
  [KVM.KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON]: 'the processor left the guest for a reason that KVM does not know',
}

export function describeInternalError(run: RunView): string {
  const suberror = run.get('internal.suberror')
  const what = INTERNAL_ERRORS[suberror] ?? `KVM internal error ${suberror}`
  const words = run.get('internal.ndata')
  // With flag 1, the failing instruction's bytes follow the flags.
  if (suberror === KVM.KVM_INTERNAL_ERROR_EMULATION && words >= 3 && (run.get('emulation_failure.flags') & 1n) !== 0n) {
    const size = Math.min(run.get('emulation_failure.insn_size'), 15)
    if (size > 0) return `${what}: ${hex(run.sub('emulation_failure.insn_bytes').subarray(0, size))}`
  }
  return what
}

export function describeFailedEntry(run: RunView): string {
  const reason = run.get('fail_entry.hardware_entry_failure_reason')
  return `the processor refused to enter the guest (reason 0x${reason.toString(16)}): the register state is not valid`
}

const SYSTEM_EVENTS: Readonly<Record<number, string>> = {
  [KVM.KVM_SYSTEM_EVENT_SHUTDOWN]: 'a shutdown',
  [KVM.KVM_SYSTEM_EVENT_RESET]: 'a reset',
  [KVM.KVM_SYSTEM_EVENT_CRASH]: 'a crash',
}

export function describeSystemEvent(run: RunView): string {
  const type = run.get('system_event.type')
  return `the guest reported ${SYSTEM_EVENTS[type] ?? `system event ${type}`} to KVM`
}
