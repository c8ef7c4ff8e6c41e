/** The running vCPU: one wasm instance a worker, one base pointer an instance. */
import { S_FLAG_A, S_FLAG_B, S_FLAG_KIND, S_FLAG_RES, S_GPR } from './state'

/** Address of this vCPU's state (state.ts) in the shared memory. Hot loops copy it to a local. */
export let cpu: usize = 0

export function setCpu(base: usize): void {
  cpu = base
}

/** A general register by number. */
@inline
export function gpr(number: u32): u64 {
  return load<u64>(cpu + (number << 3), S_GPR)
}

@inline
export function setGpr(number: u32, value: u64): void {
  store<u64>(cpu + (number << 3), value, S_GPR)
}

/** Records a flag-setting operation; operands and result sign-extended to 64 bits (state.ts says how flags follow). */
@inline
export function setFlags(c: usize, kind: u32, result: i64, a: i64, b: i64): void {
  store<u32>(c, kind, S_FLAG_KIND)
  store<i64>(c, result, S_FLAG_RES)
  store<i64>(c, a, S_FLAG_A)
  store<i64>(c, b, S_FLAG_B)
}

@inline
export function setLogicFlags(c: usize, result: i64): void {
  store<u32>(c, 1, S_FLAG_KIND)
  store<i64>(c, result, S_FLAG_RES)
}
