/** The IOAPIC: 24 redirection entries, and the interrupt lines that devices on any thread raise. */
import { deliverMessage, isAddressed } from './apic'
import { cpu } from './cpu'
import { picRaise } from './pic'
import { C_IOAPIC_ID, C_IOAPIC_SELECT, C_IOAPIC_TABLE, C_LINES, S_CHIPS, S_CPUS } from './state'

const ENTRIES: u32 = 24
const MASKED: u64 = 0x1_0000
const LEVEL: u64 = 0x8000
const REMOTE_IRR: u64 = 0x4000

@inline
function chips(): usize {
  return load<u32>(cpu, S_CHIPS)
}
@inline
function entryAt(index: u32): usize {
  return chips() + C_IOAPIC_TABLE + (index << 3)
}

export function resetIoapic(): void {
  for (let i: u32 = 0; i < ENTRIES; i++) store<u64>(entryAt(i), MASKED)
  store<u32>(chips(), 0, C_IOAPIC_SELECT)
}

/** Takes the lines that were raised since the last call, and routes them. Only vCPU 0 does. */
export function routeLines(): void {
  const lines = atomic.xchg<u32>(chips() + C_LINES, 0)
  for (let gsi: u32 = 0; gsi < ENTRIES; gsi++) {
    if (!(lines & (1 << gsi))) continue
    if (gsi < 16) picRaise(gsi)
    raiseGsi(gsi)
  }
}

/** An edge on an IOAPIC pin. The PIT is wired to pin 2 (as the MADT's interrupt override says), so callers give pins, not IRQs. */
export function raiseGsi(gsi: u32): void {
  const at = entryAt(gsi)
  const entry = load<u64>(at)
  if (entry & MASKED) return
  const level = (entry & LEVEL) != 0
  if (level) {
    if (entry & REMOTE_IRR) return
    store<u64>(at, entry | REMOTE_IRR)
  }
  const mode = <u32>(entry >> 8) & 7
  const vector = <u32>entry & 0xff
  const logical = (entry & 0x800) != 0
  const destination = <u32>(entry >> 56)
  const cpus = load<u32>(cpu, S_CPUS)
  for (let i: u32 = 0; i < cpus; i++) {
    if (!isAddressed(i, destination, logical)) continue
    deliverMessage(i, mode, vector, level)
    if (mode == 1) return
  }
}

/** A level-triggered interrupt has been served. Our lines are edges, so there is nothing to raise again. */
export function ioapicEoi(vector: u32): void {
  for (let i: u32 = 0; i < ENTRIES; i++) {
    const entry = load<u64>(entryAt(i))
    if ((<u32>entry & 0xff) == vector && entry & LEVEL) store<u64>(entryAt(i), entry & ~REMOTE_IRR)
  }
}

export function ioapicRead(offset: u32): u32 {
  const select = load<u32>(chips(), C_IOAPIC_SELECT)
  if (offset == 0) return select
  if (offset != 0x10) return 0
  if (select == 0) return load<u32>(chips(), C_IOAPIC_ID)
  if (select == 1) return 0x20 | ((ENTRIES - 1) << 16)
  if (select == 2) return load<u32>(chips(), C_IOAPIC_ID)
  const index = (select - 0x10) >> 1
  if (select < 0x10 || index >= ENTRIES) return 0
  const entry = load<u64>(entryAt(index))
  return select & 1 ? <u32>(entry >> 32) : <u32>entry
}

export function ioapicWrite(offset: u32, value: u32): void {
  if (offset == 0) {
    store<u32>(chips(), value & 0xff, C_IOAPIC_SELECT)
    return
  }
  if (offset == 0x40) {
    ioapicEoi(value & 0xff)
    return
  }
  if (offset != 0x10) return
  const select = load<u32>(chips(), C_IOAPIC_SELECT)
  if (select == 0) store<u32>(chips(), value & 0x0f00_0000, C_IOAPIC_ID)
  const index = (select - 0x10) >> 1
  if (select < 0x10 || index >= ENTRIES) return
  const at = entryAt(index)
  const entry = load<u64>(at)
  if (select & 1) store<u64>(at, (entry & 0xffff_ffff) | (<u64>value << 32))
  else store<u64>(at, (entry & 0xffff_ffff_0000_5000) | (<u64>value & 0x1_afff))
}
