/**
 * Raising faults. Nothing throws: a fault sets S_FAULT and the caller goes on with a dummy value until it reaches its
 * own check. While S_FAULT is set, slow-path loads give 0 and slow-path stores do nothing; an address that must not be used is POISON,
 * which is in no TLB. So an instruction is safe when it commits registers only after `faulted()` was asked once, after its last access.
 */
import { cpu } from './cpu'
import {
  FAULT_EXCEPTION,
  FAULT_EXIT,
  S_CR0,
  S_CR4,
  S_EXIT,
  S_FAULT,
  S_FAULT_ADDRESS,
  S_FAULT_ERROR,
  S_FAULT_HAS_ERROR,
  S_FAULT_VECTOR,
  S_FPU_TRAP,
} from './state'

/** Not canonical, so no TLB entry ever matches it, and still not canonical after adding a few bytes. */
export const POISON: u64 = 0x8000_0000_0000_0000

export const VECTOR_DE: u32 = 0
export const VECTOR_DB: u32 = 1
export const VECTOR_BP: u32 = 3
export const VECTOR_OF: u32 = 4
export const VECTOR_BR: u32 = 5
export const VECTOR_UD: u32 = 6
export const VECTOR_NM: u32 = 7
export const VECTOR_DF: u32 = 8
export const VECTOR_TS: u32 = 10
export const VECTOR_NP: u32 = 11
export const VECTOR_SS: u32 = 12
export const VECTOR_GP: u32 = 13
export const VECTOR_PF: u32 = 14
export const VECTOR_MF: u32 = 16
export const VECTOR_AC: u32 = 17
export const VECTOR_XM: u32 = 19

@inline
export function faulted(): bool {
  return load<u32>(cpu, S_FAULT) != 0
}

/** A fault without an error code: #UD, #DE, #NM, #MF, #XM. The first fault of an instruction wins. */
export function raise(vector: u32): void {
  const c = cpu
  if (load<u32>(c, S_FAULT)) return
  store<u32>(c, FAULT_EXCEPTION, S_FAULT)
  store<u32>(c, vector, S_FAULT_VECTOR)
  store<u32>(c, 0, S_FAULT_ERROR)
  store<u32>(c, 0, S_FAULT_HAS_ERROR)
}

/** A fault with an error code: #GP, #SS, #NP, #TS, #AC. */
export function raiseError(vector: u32, error: u32): void {
  const c = cpu
  if (load<u32>(c, S_FAULT)) return
  store<u32>(c, FAULT_EXCEPTION, S_FAULT)
  store<u32>(c, vector, S_FAULT_VECTOR)
  store<u32>(c, error, S_FAULT_ERROR)
  store<u32>(c, 1, S_FAULT_HAS_ERROR)
}

export function raisePageFault(address: u64, error: u32): void {
  const c = cpu
  if (load<u32>(c, S_FAULT)) return
  raiseError(VECTOR_PF, error)
  store<u64>(c, address, S_FAULT_ADDRESS)
}

@inline
export function raiseUd(): void {
  raise(VECTOR_UD)
}

@inline
export function raiseGp(): void {
  raiseError(VECTOR_GP, 0)
}

/** S_FAULT_HAS_ERROR of a #GP that becomes #SS when the operand is in the stack segment: see `blameStack`. */
export const NOT_CANONICAL: u32 = 3

/** An address that is not canonical: #GP(0), or #SS(0) for the stack segment, which only the instruction knows. */
export function raiseNotCanonical(): void {
  const c = cpu
  if (load<u32>(c, S_FAULT)) return
  raiseGp()
  store<u32>(c, NOT_CANONICAL, S_FAULT_HAS_ERROR)
}

@inline
function canonical(address: u64): bool {
  return <u64>((<i64>(address << 16)) >> 16) == address
}

/** An operand of `bytes` that is not aligned: #GP(0), unless it is not all at canonical addresses. */
export function raiseMisaligned(address: u64, bytes: u32): void {
  if (canonical(address) && canonical(address + bytes - 1)) raiseGp()
  else raiseNotCanonical()
}

/** Leave run() with this exit reason; the instruction has not been executed. */
export function raiseExit(reason: u32): void {
  const c = cpu
  if (load<u32>(c, S_FAULT)) return
  store<u32>(c, FAULT_EXIT, S_FAULT)
  store<u32>(c, reason, S_EXIT)
}

const CR0_EM: u64 = 4
const CR0_TS: u64 = 8
const CR4_OSFXSR: u64 = 0x200

/** True (and a fault raised) when an x87 instruction may not run now: CR0.EM or TS gives #NM. */
export function fpuTrapX87(): bool {
  if (load<u32>(cpu, S_FPU_TRAP) == 0) return false
  if ((load<u64>(cpu, S_CR0) & (CR0_EM | CR0_TS)) == 0) return false
  raise(VECTOR_NM)
  return true
}

/** The same for MMX: EM gives #UD, TS #NM. */
export function fpuTrapMmx(): bool {
  if (load<u32>(cpu, S_FPU_TRAP) == 0) return false
  const cr0 = load<u64>(cpu, S_CR0)
  if (cr0 & CR0_EM) raise(VECTOR_UD)
  else if (cr0 & CR0_TS) raise(VECTOR_NM)
  else return false
  return true
}

/** The same for SSE: EM or no OSFXSR gives #UD, TS #NM. */
export function fpuTrapSse(): bool {
  if (load<u32>(cpu, S_FPU_TRAP) == 0) return false
  const cr0 = load<u64>(cpu, S_CR0)
  if (cr0 & CR0_EM || (load<u64>(cpu, S_CR4) & CR4_OSFXSR) == 0) raise(VECTOR_UD)
  else if (cr0 & CR0_TS) raise(VECTOR_NM)
  else return false
  return true
}
