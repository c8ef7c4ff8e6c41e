/** The chips in here, by port: PICs, PIT, CMOS clock. */
import { picRead, picWrite, resetPics } from './pic'
import { pitRead, pitWrite, resetPit } from './pit'
import { resetIoapic } from './ioapic'
import { resetRtc, rtcRead, rtcWrite } from './rtc'

export function isChipPort(port: u32): bool {
  if (port < 0x100) {
    switch (port) {
      case 0x20:
      case 0x21:
      case 0x40:
      case 0x41:
      case 0x42:
      case 0x43:
      case 0x61:
      case 0x70:
      case 0x71:
      case 0xa0:
      case 0xa1:
        return true
      default:
        return false
    }
  }
  return port == 0x4d0 || port == 0x4d1
}

export function chipPortRead(port: u32): u32 {
  if (port == 0x70 || port == 0x71) return rtcRead(port)
  if (port == 0x61 || (port & ~3) == 0x40) return pitRead(port)
  return picRead(port)
}

export function chipPortWrite(port: u32, value: u32): void {
  if (port == 0x70 || port == 0x71) rtcWrite(port, value)
  else if (port == 0x61 || (port & ~3) == 0x40) pitWrite(port, value)
  else picWrite(port, value)
}

export function resetChips(): void {
  resetIoapic()
  resetPics()
  resetPit()
  resetRtc()
}
