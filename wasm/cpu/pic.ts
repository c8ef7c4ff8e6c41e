/** The pair of 8259A interrupt controllers. Lines are edges; level mode is kept but means the same. */
import { cpu } from './cpu'
import { C_PIC, S_ATTENTION, S_CHIPS, ATTN_INTERRUPT } from './state'

// One controller, 16 bytes.
const IRR: usize = 0
const ISR: usize = 1
const IMR: usize = 2
const BASE: usize = 3
/** Initialisation words still expected: 0 none, else the number of the next one. */
const STEP: usize = 4
const NEEDS_ICW4: usize = 5
const AUTO_EOI: usize = 6
const READ_ISR: usize = 7
const ELCR: usize = 8
const READY: usize = 9

@inline
function pic(which: u32): usize {
  return <usize>load<u32>(cpu, S_CHIPS) + C_PIC + (which << 4)
}

export function resetPics(): void {
  memory.fill(pic(0), 0, 32)
  store<u8>(pic(0), 0xff, IMR)
  store<u8>(pic(1), 0xff, IMR)
}

export function picRaise(irq: u32): void {
  const at = pic(irq >> 3)
  store<u8>(at, load<u8>(at, IRR) | (<u8>1 << <u8>(irq & 7)), IRR)
}

/** The line to serve next, 0..7, or -1: unmasked, and above what is in service. */
function next(which: u32): i32 {
  const at = pic(which)
  let requests = <u32>load<u8>(at, IRR) & ~<u32>load<u8>(at, IMR)
  if (which == 0 && next(1) >= 0 && !(load<u8>(at, IMR) & 4)) requests |= 4
  if (!requests) return -1
  const line = ctz<u32>(requests)
  const serving = load<u8>(at, ISR)
  // The slave's line may nest.
  if (serving && ctz<u32>(serving) <= line && !(which == 0 && line == 2 && ctz<u32>(serving) == 2)) return -1
  return <i32>line
}

export function picPending(): bool {
  return load<u8>(pic(0), READY) != 0 && next(0) >= 0
}

function take(which: u32, line: u32): void {
  const at = pic(which)
  const bit = <u8>1 << <u8>line
  store<u8>(at, load<u8>(at, IRR) & ~bit, IRR)
  if (!load<u8>(at, AUTO_EOI)) store<u8>(at, load<u8>(at, ISR) | bit, ISR)
}

/** The CPU acknowledges: the vector. */
export function picAcknowledge(): u32 {
  const line = next(0)
  if (line < 0) return <u32>load<u8>(pic(0), BASE) + 7
  take(0, <u32>line)
  if (line != 2) return <u32>load<u8>(pic(0), BASE) + <u32>line
  const slave = next(1)
  if (slave < 0) return <u32>load<u8>(pic(1), BASE) + 7
  take(1, <u32>slave)
  return <u32>load<u8>(pic(1), BASE) + <u32>slave
}

export function picRead(port: u32): u32 {
  if (port >= 0x4d0) return load<u8>(pic(port & 1), ELCR)
  const at = pic(port >= 0xa0 ? 1 : 0)
  if (port & 1) return load<u8>(at, IMR)
  return load<u8>(at, READ_ISR) ? load<u8>(at, ISR) : load<u8>(at, IRR)
}

export function picWrite(port: u32, value: u32): void {
  atomic.or<u32>(cpu + S_ATTENTION, ATTN_INTERRUPT)
  if (port >= 0x4d0) {
    store<u8>(pic(port & 1), <u8>value, ELCR)
    return
  }
  const at = pic(port >= 0xa0 ? 1 : 0)
  if (port & 1) {
    const step = load<u8>(at, STEP)
    if (step == 2) {
      store<u8>(at, <u8>(value & 0xf8), BASE)
      store<u8>(at, 3, STEP)
    } else if (step == 3) {
      store<u8>(at, load<u8>(at, NEEDS_ICW4) ? 4 : 0, STEP)
      store<u8>(at, 1, READY)
    } else if (step == 4) {
      store<u8>(at, (value & 2) != 0 ? 1 : 0, AUTO_EOI)
      store<u8>(at, 0, STEP)
    } else store<u8>(at, <u8>value, IMR)
    return
  }
  if (value & 0x10) {
    // ICW1: start over.
    const elcr = load<u8>(at, ELCR)
    memory.fill(at, 0, 16)
    store<u8>(at, elcr, ELCR)
    store<u8>(at, 2, STEP)
    store<u8>(at, <u8>(value & 1), NEEDS_ICW4)
  } else if (value & 8) {
    if (value & 2) store<u8>(at, <u8>(value & 1), READ_ISR)
  } else {
    const command = value >> 5
    if (command == 1 || command == 5) {
      const serving = load<u8>(at, ISR)
      store<u8>(at, serving & (serving - 1), ISR)
    } else if (command == 3 || command == 7) store<u8>(at, load<u8>(at, ISR) & ~(<u8>1 << <u8>(value & 7)), ISR)
  }
}
