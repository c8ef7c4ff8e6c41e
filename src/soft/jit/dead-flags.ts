/** Which instructions of a block need not compute their flags: others replace them before anything reads them or leaves the region. */
import * as O from '../../../wasm/cpu/ops.ts'
import type { Operation } from './context.ts'

/** Sets all arithmetic flags, reads none, and touches no memory. */
const REPLACES = 1
/** Sets some and keeps others. */
const CHANGES = 2
/** Has nothing to do with flags, and cannot fault. */
const NEUTRAL = 3
/** Reads them, or may leave the region. */
const NEEDS = 4

function effectOf({ handler }: Operation): number {
  if (handler >= O.H_ALU && handler < O.H_ALU_END) {
    const which = (handler - O.H_ALU) >> 2
    const form = which % 5
    const alu = Math.floor(which / 5)
    if (form !== O.FORM_RR && form !== O.FORM_RI) return NEEDS
    return alu === O.ALU_ADC || alu === O.ALU_SBB ? NEEDS : REPLACES
  }
  if (handler >= O.H_MOV && handler < O.H_LEA) {
    const form = (handler - O.H_MOV) >> 2
    return form === O.FORM_RR || form === O.FORM_RI ? NEUTRAL : NEEDS
  }
  if (handler >= O.H_LEA && handler <= O.H_MOVZX_R16) return NEUTRAL
  if (handler >= O.H_MOVSX_R8 && handler <= O.H_MOVSX_R32) return NEUTRAL
  if (handler >= O.H_INC_R && handler < O.H_NOT_R) return CHANGES
  if (handler >= O.H_NOT_R && handler < O.H_NEG_R) return NEUTRAL
  if (handler >= O.H_NEG_R && handler < O.H_NEG_R + 4) return REPLACES
  if (handler >= O.H_SHL32 && handler <= O.H_SAR64) return REPLACES
  if (handler >= O.H_ROL32 && handler <= O.H_ROR64) return CHANGES
  switch (handler) {
    case O.H_IMUL_R:
      return REPLACES
    case O.H_NOP:
    case O.H_CBW:
    case O.H_CWD:
    case O.H_BSWAP:
      return NEUTRAL
    default:
      return NEEDS
  }
}

/** Whether it is likely to go through the TLB. */
export const accessesMemory = ({ handler, ea }: Operation): boolean =>
  (ea !== O.EA_REGISTER && (handler < O.H_LEA || handler >= O.H_LEA + 4)) ||
  (handler >= O.H_PUSH64 && handler <= O.H_PUSHI64) ||
  (handler >= O.H_CALL64 && handler <= O.H_RETI64)

export function deadFlags(operations: readonly Operation[]): boolean[] {
  const dead = new Array<boolean>(operations.length)
  // Whoever comes after the block may look at them.
  let needed = true
  for (let index = operations.length - 1; index >= 0; index--) {
    const effect = effectOf(operations[index]!)
    dead[index] = !needed && effect !== NEEDS
    if (effect === NEEDS) needed = true
    else if (effect === REPLACES) needed = false
    // One that changes some keeps others: they are needed before it exactly when they are after it.
  }
  return dead
}
