/** The 8254 timer: channel 0 raises IRQ 0 (IOAPIC pin 2), channel 2 is read back through port 0x61. */
import { cpu } from './cpu'
import { raiseGsi } from './ioapic'
import { picRaise } from './pic'
import { C_PIT, C_PIT_DUE, C_PORT61, S_CHIPS } from './state'
import { nowNs } from './time'

/** Nanoseconds a tick of 1.193182 MHz. */
const TICK: f64 = 838.0953445

// One channel, 32 bytes.
const START: usize = 0 // f64 ns
const COUNT: usize = 8 // u32: reload value, 1..65536
const MODE: usize = 12
const ACCESS: usize = 13 // 1 low, 2 high, 3 both
const WRITE_HIGH: usize = 14 // next written byte is the high one
const READ_HIGH: usize = 15
const LATCHED: usize = 16
const LATCH: usize = 18 // u16
const LOW: usize = 20
const LOADED: usize = 21
const STATUS_LATCHED: usize = 22

@inline
function chips(): usize {
  return load<u32>(cpu, S_CHIPS)
}
@inline
function channel(index: u32): usize {
  return chips() + C_PIT + (index << 5)
}

export function resetPit(): void {
  memory.fill(channel(0), 0, 96)
  for (let i: u32 = 0; i < 3; i++) {
    store<u32>(channel(i), 65536, COUNT)
    store<u8>(channel(i), 3, ACCESS)
  }
  store<f64>(chips(), Infinity, C_PIT_DUE)
  store<u32>(chips(), 0, C_PORT61)
}

function ticks(at: usize): f64 {
  return Math.floor((nowNs() - load<f64>(at, START)) / TICK)
}

function periodic(at: usize): bool {
  const mode = load<u8>(at, MODE)
  return mode == 2 || mode == 3
}

function counter(at: usize): u32 {
  const count = <f64>load<u32>(at, COUNT)
  const gone = ticks(at)
  if (periodic(at)) {
    const phase = gone - Math.floor(gone / count) * count
    const step: f64 = load<u8>(at, MODE) == 3 ? 2 : 1
    return <u32>(count - ((phase * step) % count)) & 0xffff
  }
  return <u32>(<i64>(count - gone)) & 0xffff
}

function output(at: usize): bool {
  if (!load<u8>(at, LOADED)) return false
  const gone = ticks(at)
  const count = <f64>load<u32>(at, COUNT)
  if (load<u8>(at, MODE) == 3) return gone - Math.floor(gone / count) * count < count / 2
  if (load<u8>(at, MODE) == 2) return true
  return gone >= count
}

function start(index: u32): void {
  const at = channel(index)
  store<f64>(at, nowNs(), START)
  store<u8>(at, 1, LOADED)
  if (index == 0) store<f64>(chips(), load<f64>(at, START) + <f64>load<u32>(at, COUNT) * TICK, C_PIT_DUE)
}

/** Raises IRQ 0 when channel 0 is due. */
export function pollPit(now: f64): void {
  const due = load<f64>(chips(), C_PIT_DUE)
  if (now < due) return
  const at = channel(0)
  if (periodic(at)) {
    const period = max<f64>(<f64>load<u32>(at, COUNT) * TICK, 20_000)
    let next = due + period
    if (next <= now) next = now + period
    store<f64>(chips(), next, C_PIT_DUE)
  } else store<f64>(chips(), Infinity, C_PIT_DUE)
  picRaise(0)
  raiseGsi(2)
}

export function pitRead(port: u32): u32 {
  if (port == 0x61) {
    const value = load<u32>(chips(), C_PORT61) & 0xf
    // Bit 4 toggles with refresh; bit 5 is channel 2's output.
    const refresh: u32 = (<u32>(<i64>(nowNs() / 15_000)) & 1) << 4
    return value | refresh | (output(channel(2)) ? 0x20 : 0)
  }
  if (port == 0x43) return 0
  const at = channel(port & 3)
  if (load<u8>(at, STATUS_LATCHED)) {
    store<u8>(at, 0, STATUS_LATCHED)
    return (output(at) ? 0x80 : 0) | (<u32>load<u8>(at, ACCESS) << 4) | (<u32>load<u8>(at, MODE) << 1)
  }
  const latched = load<u8>(at, LATCHED)
  const value = latched ? <u32>load<u16>(at, LATCH) : counter(at)
  const access = load<u8>(at, ACCESS)
  if (access == 3) {
    const high = load<u8>(at, READ_HIGH)
    store<u8>(at, high ? 0 : 1, READ_HIGH)
    if (high) store<u8>(at, 0, LATCHED)
    return high ? value >> 8 : value & 0xff
  }
  store<u8>(at, 0, LATCHED)
  return access == 2 ? value >> 8 : value & 0xff
}

export function pitWrite(port: u32, value: u32): void {
  if (port == 0x61) {
    const before = load<u32>(chips(), C_PORT61)
    store<u32>(chips(), value & 0xf, C_PORT61)
    // A rising gate starts channel 2.
    if (value & 1 && !(before & 1)) start(2)
    return
  }
  if (port == 0x43) {
    command(value)
    return
  }
  const index = port & 3
  const at = channel(index)
  const access = load<u8>(at, ACCESS)
  if (access == 3) {
    if (!load<u8>(at, WRITE_HIGH)) {
      store<u8>(at, <u8>value, LOW)
      store<u8>(at, 1, WRITE_HIGH)
      return
    }
    store<u8>(at, 0, WRITE_HIGH)
    value = (value << 8) | load<u8>(at, LOW)
  } else if (access == 2) value <<= 8
  store<u32>(at, value ? value : 65536, COUNT)
  start(index)
}

function command(value: u32): void {
  const index = value >> 6
  if (index == 3) {
    // Read back: latch count (bit 5 clear) and status (bit 4 clear) of channels in bits 1-3.
    for (let i: u32 = 0; i < 3; i++) {
      if (!(value & (2 << i))) continue
      if (!(value & 0x20)) latch(i)
      if (!(value & 0x10)) store<u8>(channel(i), 1, STATUS_LATCHED)
    }
    return
  }
  const access = (value >> 4) & 3
  if (access == 0) {
    latch(index)
    return
  }
  const at = channel(index)
  let mode = (value >> 1) & 7
  if (mode > 5) mode -= 4
  store<u8>(at, <u8>access, ACCESS)
  store<u8>(at, <u8>mode, MODE)
  store<u8>(at, 0, WRITE_HIGH)
  store<u8>(at, 0, READ_HIGH)
  store<u8>(at, 0, LATCHED)
  store<u8>(at, 0, LOADED)
  if (index == 0) store<f64>(chips(), Infinity, C_PIT_DUE)
}

function latch(index: u32): void {
  const at = channel(index)
  if (load<u8>(at, LATCHED)) return
  store<u16>(at, <u16>counter(at), LATCH)
  store<u8>(at, 1, LATCHED)
}
