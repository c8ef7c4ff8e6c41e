/** The CMOS clock, read-only time of day in BCD, and its 128 bytes of memory. It raises no interrupts. */
import { cpu } from './cpu'
import { hostWallSeconds } from './host'
import { C_CMOS, C_CMOS_INDEX, S_CHIPS } from './state'

@inline
function chips(): usize {
  return load<u32>(cpu, S_CHIPS)
}

function bcd(value: u32): u32 {
  return ((value / 10) << 4) | value % 10
}

/** A field of the current date, by civil-from-days (proleptic Gregorian). */
function field(index: u32): u32 {
  const seconds = <i64>hostWallSeconds()
  const days = seconds / 86400
  const time = <u32>(seconds - days * 86400)
  if (index == 0) return bcd(time % 60)
  if (index == 2) return bcd((time / 60) % 60)
  if (index == 4) return bcd(time / 3600)
  if (index == 6) return bcd(<u32>((days + 4) % 7) + 1)
  const z = days + 719468
  const era = z / 146097
  const doe = z - era * 146097
  const yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365
  const doy = doe - (365 * yoe + yoe / 4 - yoe / 100)
  const mp = (5 * doy + 2) / 153
  const day = <u32>(doy - (153 * mp + 2) / 5 + 1)
  const month = <u32>(mp < 10 ? mp + 3 : mp - 9)
  const year = <u32>(yoe + era * 400) + (month <= 2 ? 1 : 0)
  if (index == 7) return bcd(day)
  if (index == 8) return bcd(month)
  if (index == 9) return bcd(year % 100)
  return bcd(year / 100)
}

export function resetRtc(): void {
  memory.fill(chips() + C_CMOS, 0, 128)
  store<u8>(chips() + C_CMOS + 0x0a, 0x26)
  store<u8>(chips() + C_CMOS + 0x0b, 2) // 24 hours, BCD
  store<u8>(chips() + C_CMOS + 0x0d, 0x80) // battery good
}

export function rtcRead(port: u32): u32 {
  if (port == 0x70) return 0xff
  const index = load<u32>(chips(), C_CMOS_INDEX)
  if (index <= 9 && index != 1 && index != 3 && index != 5) return field(index)
  if (index == 0x32) return field(0x32)
  return load<u8>(chips() + C_CMOS + index)
}

export function rtcWrite(port: u32, value: u32): void {
  if (port == 0x70) store<u32>(chips(), value & 0x7f, C_CMOS_INDEX)
  else {
    const index = load<u32>(chips(), C_CMOS_INDEX)
    // Interrupts and time setting are not offered; keep 24-hour BCD.
    if (index > 0x0d) store<u8>(chips() + C_CMOS + index, <u8>value)
  }
}
