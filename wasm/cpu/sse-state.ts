/** 0F AE: FXSAVE, FXRSTOR, LDMXCSR, STMXCSR and the fences. */
import { cpu } from './cpu'
import { faulted, fpuTrapSse, fpuTrapX87, raiseGp, raiseUd } from './fault'
import { probeRead, read32, write32 } from './memory'
import { OP_SIZE, PREFIX_66, PREFIX_NONE } from './ops'
import { S_MXCSR } from './state'
import { dst, isRegister } from './vector-state'
import { fxrstor, fxsave, MXCSR_MASK } from './x87-env'

export function execStateGroup(op: usize, ea: u64, prefix: i32): void {
  const reg = dst(op) & 7
  if (isRegister(op)) {
    // LFENCE, MFENCE, SFENCE: memory is ordered as it is.
    if (reg >= 5 && prefix == PREFIX_NONE) return
    return raiseUd()
  }
  if (prefix == PREFIX_66 && reg == 7) {
    // CLFLUSHOPT.
    probeRead(ea, 1)
    return
  }
  if (prefix != PREFIX_NONE) return raiseUd()
  const wide = load<u8>(op, OP_SIZE) == 3
  switch (reg) {
    case 0:
      if (!fpuTrapX87()) fxsave(ea, wide)
      return
    case 1:
      if (!fpuTrapX87()) fxrstor(ea, wide)
      return
    case 2: {
      if (fpuTrapSse()) return
      const value = read32(ea)
      if (faulted()) return
      if (value & ~MXCSR_MASK) return raiseGp()
      store<u32>(cpu, value, S_MXCSR)
      return
    }
    case 3:
      if (!fpuTrapSse()) write32(ea, load<u32>(cpu, S_MXCSR))
      return
    case 7: // CLFLUSH
      probeRead(ea, 1)
      return
    default:
      raiseUd()
  }
}
