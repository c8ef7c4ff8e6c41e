/** Accesses outside RAM: the chips in here first, then the host's devices. */
import { apicRead, apicWrite } from './apic'
import { cpu } from './cpu'
import { ioapicRead, ioapicWrite } from './ioapic'
import { hostMmioRead, hostMmioWrite } from './host'
import { S_APIC_BASE, S_COUNT_MMIO, S_STOP, S_TEMP } from './state'

const IOAPIC: u64 = 0xfec0_0000

/** In the local APIC's page: enabled, and not in x2APIC mode, which has no page. */
function isApic(address: u64): bool {
  const base = load<u64>(cpu, S_APIC_BASE)
  return (base & 0xc00) == 0x800 && (address & ~<u64>0xfff) == (base & 0xff_ffff_f000)
}

export function chipRead(address: u64, bytes: u32): u64 {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_MMIO) + 1, S_COUNT_MMIO)
  if ((address & ~<u64>0xfff) == IOAPIC) return ioapicRead(<u32>address & 0xff)
  if (isApic(address)) return apicRead(<u32>address & 0xfff)
  store<u64>(c, 0, S_TEMP)
  hostMmioRead(<f64>address, bytes)
  return load<u64>(c, S_TEMP)
}

export function chipWrite(address: u64, bytes: u32, value: u64): void {
  const c = cpu
  store<u64>(c, load<u64>(c, S_COUNT_MMIO) + 1, S_COUNT_MMIO)
  if ((address & ~<u64>0xfff) == IOAPIC) {
    ioapicWrite(<u32>address & 0xff, <u32>value)
    return
  }
  if (isApic(address)) {
    apicWrite(<u32>address & 0xfff, <u32>value)
    return
  }
  store<u64>(c, value, S_TEMP)
  if (hostMmioWrite(<f64>address, bytes)) store<u32>(c, 1, S_STOP)
}
