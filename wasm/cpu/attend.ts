/** What happens at a block head when S_ATTENTION is set: interrupts, NMI, INIT and SIPI, halting, traps, kicks, mailboxes. */
import { acceptVector, pendingVector, takesExtInt } from './apic'
import { resetBlocks } from './blocks'
import { serveMailbox } from './code-pages'
import { cpu } from './cpu'
import { raise, VECTOR_DB } from './fault'
import { IF, RF, TF } from './flags'
import { deliverFault, deliverInterrupt } from './interrupts'
import { routeLines } from './ioapic'
import { segmentAt, setMode, updateMode } from './mode'
import { picAcknowledge, picPending } from './pic'
import { resetRegisters, startAt } from './reset'
import {
  ATTN_HALT,
  ATTN_INTERRUPT,
  ATTN_KICK,
  ATTN_MAILBOX,
  ATTN_SHADOW,
  CS,
  EXIT_HALT,
  EXIT_KICK,
  MODE_SINGLE,
  S_ATTENTION,
  S_COUNT_HALTS,
  S_COUNT_INTERRUPTS,
  S_DR0,
  S_DROP_WRITERS,
  S_DR_PENDING,
  S_DR6,
  S_DR7,
  S_EXIT,
  S_INDEX,
  S_INIT_PENDING,
  S_MODE,
  S_MP_STATE,
  S_NMI_MASKED,
  S_NMI_PENDING,
  S_RFLAGS,
  S_RIP,
  S_SHADOW,
  S_SIPI_PENDING,
  S_SIPI_VECTOR,
  S_TF_ARMED,
  SEG_BASE,
} from './state'
import { dropAllWriters } from './tlb'

/** False when run() is to return, with S_EXIT set. S_RIP may have changed. */
export function attend(): bool {
  const c = cpu
  const attention = atomic.xchg<u32>(c + S_ATTENTION, 0)
  if (attention & ATTN_KICK) {
    atomic.or<u32>(c + S_ATTENTION, attention & ~ATTN_KICK)
    store<u32>(c, EXIT_KICK, S_EXIT)
    return false
  }
  if (attention & ATTN_MAILBOX) {
    if (serveMailbox()) resetBlocks()
    if (atomic.xchg<u32>(c + S_DROP_WRITERS, 0)) dropAllWriters()
  }
  // Bits that stay set: they make the next block head come here again.
  let keep: u32 = 0
  if (attention & ATTN_SHADOW) {
    // A temporary one-instruction block may have been in force.
    updateMode()
    keep |= atomic.xchg<u32>(c + S_ATTENTION, 0)
    if (keep & ATTN_SHADOW && !debugTraps()) return finish(keep, false)
  }
  if (load<u32>(c, S_INDEX) == 0) routeLines()
  if (atomic.load<u32>(c + S_INIT_PENDING)) {
    atomic.store<u32>(c + S_INIT_PENDING, 0)
    resetRegisters(true)
    store<u32>(c, 2, S_MP_STATE)
  }
  if (atomic.load<u32>(c + S_SIPI_PENDING)) {
    atomic.store<u32>(c + S_SIPI_PENDING, 0)
    if (load<u32>(c, S_MP_STATE) == 2) {
      startAt(load<u32>(c, S_SIPI_VECTOR))
      store<u32>(c, 0, S_MP_STATE)
    }
  }
  if (load<u32>(c, S_MP_STATE) == 2) return sleep()
  if (load<u32>(c, S_SHADOW)) {
    store<u32>(c, 0, S_SHADOW)
    // One instruction, then here again.
    setMode(load<u32>(c, S_MODE) | MODE_SINGLE)
    return finish(keep | ATTN_SHADOW | ATTN_INTERRUPT | (attention & ATTN_HALT), true)
  }
  if (atomic.load<u32>(c + S_NMI_PENDING) && !load<u32>(c, S_NMI_MASKED)) {
    atomic.store<u32>(c + S_NMI_PENDING, 0)
    store<u32>(c, 1, S_NMI_MASKED)
    store<u32>(c, 0, S_MP_STATE)
    return finish(keep | ATTN_INTERRUPT, enter(2))
  }
  if (load<u32>(c, S_RFLAGS) & IF) {
    const vector = pendingVector()
    if (vector >= 0) {
      acceptVector(<u32>vector)
      store<u32>(c, 0, S_MP_STATE)
      return finish(keep, enter(<u32>vector))
    }
    if (takesExtInt() && picPending()) {
      store<u32>(c, 0, S_MP_STATE)
      return finish(keep, enter(picAcknowledge()))
    }
  }
  if (load<u32>(c, S_MP_STATE) == 1) return sleep()
  return finish(keep, true)
}

function finish(keep: u32, go: bool): bool {
  if (keep) atomic.or<u32>(cpu + S_ATTENTION, keep)
  return go
}

/** Leaves run() until something happens. The bit that stays set brings us back here first. */
function sleep(): bool {
  const c = cpu
  store<u32>(c, EXIT_HALT, S_EXIT)
  store<u64>(c, load<u64>(c, S_COUNT_HALTS) + 1, S_COUNT_HALTS)
  atomic.or<u32>(c + S_ATTENTION, ATTN_HALT)
  return false
}

function enter(vector: u32): bool {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_INTERRUPTS) + 1, S_COUNT_INTERRUPTS)
  store<u32>(c, 0, S_TF_ARMED)
  if (deliverInterrupt(vector, false)) return true
  return deliverFault()
}

/** Single-step and instruction breakpoints, before the instruction at S_RIP. False when run() is to return. */
function debugTraps(): bool {
  const c = cpu
  if (load<u32>(c, S_RFLAGS) & TF) {
    if (load<u32>(c, S_TF_ARMED)) {
      store<u32>(c, 0, S_TF_ARMED)
      store<u64>(c, load<u64>(c, S_DR6) | 0x4000, S_DR6)
      raise(VECTOR_DB)
      return deliverFault()
    }
    store<u32>(c, 1, S_TF_ARMED)
  } else store<u32>(c, 0, S_TF_ARMED)
  const hit = load<u32>(c, S_DR_PENDING)
  if (hit) {
    // A data breakpoint traps after its instruction.
    store<u32>(c, 0, S_DR_PENDING)
    store<u32>(c, 0, S_TF_ARMED)
    store<u64>(c, load<u64>(c, S_DR6) | <u64>hit, S_DR6)
    raise(VECTOR_DB)
    return deliverFault()
  }
  const dr7 = load<u64>(c, S_DR7)
  if (!(dr7 & 0xff)) return true
  if (load<u32>(c, S_RFLAGS) & RF) {
    store<u32>(c, load<u32>(c, S_RFLAGS) & ~RF, S_RFLAGS)
    return true
  }
  const linear = load<u64>(segmentAt(CS), SEG_BASE) + load<u64>(c, S_RIP)
  for (let i: u32 = 0; i < 4; i++) {
    if (!((dr7 >> (i << 1)) & 3) || ((dr7 >> (16 + (i << 2))) & 3) != 0) continue
    if (load<u64>(c + (i << 3), S_DR0) != linear) continue
    store<u64>(c, load<u64>(c, S_DR6) | (<u64>1 << i), S_DR6)
    store<u32>(c, 0, S_TF_ARMED)
    // A fault, not a trap: pushes RF so that it does not hit again on return.
    raise(VECTOR_DB)
    return deliverFault()
  }
  return true
}
