import { describe, expect, it } from 'vitest'
import { GuestMemory } from './guest-memory.ts'
import { MAX_RAM_MIB, MIB, MMIO_HOLE_END, MMIO_HOLE_START, RAM_OFFSET } from './layout.ts'

describe('GuestMemory', () => {
  it('maps low RAM at its offset and refuses what crosses its end', () => {
    const memory = GuestMemory.create(4)
    expect(memory.offsetOf(0, 4 * MIB)).toBe(RAM_OFFSET)
    expect(memory.offsetOf(4 * MIB - 1, 1)).toBe(RAM_OFFSET + 4 * MIB - 1)
    expect(memory.offsetOf(4 * MIB - 1, 2)).toBe(-1)
    expect(memory.offsetOf(4 * MIB, 0)).toBe(RAM_OFFSET + 4 * MIB)
    for (const [address, length] of [
      [-1, 1],
      [0, -1],
      [Number.NaN, 1],
      [0, Number.NaN],
      [2 ** 53, 1],
      [2 ** 64, 2 ** 64],
      [Number.POSITIVE_INFINITY, 1],
    ] as const) {
      expect(memory.offsetOf(address, length)).toBe(-1)
    }
  })

  it('splits a large guest around the MMIO hole', () => {
    const memory = GuestMemory.create(MAX_RAM_MIB)
    expect(memory.regions).toHaveLength(2)
    expect(memory.offsetOf(MMIO_HOLE_START - 1, 1)).toBe(RAM_OFFSET + MMIO_HOLE_START - 1)
    expect(memory.offsetOf(MMIO_HOLE_START, 1)).toBe(-1)
    expect(memory.offsetOf(MMIO_HOLE_END - 1, 2)).toBe(-1)
    expect(memory.offsetOf(MMIO_HOLE_END, 1)).toBe(RAM_OFFSET + MMIO_HOLE_START)
    expect(memory.offsetOf(MMIO_HOLE_END + memory.size - MMIO_HOLE_START, 1)).toBe(-1)
  })

  it('is one memory for every view of it', () => {
    const memory = GuestMemory.create(2)
    const other = GuestMemory.attach(memory.wasm)
    memory.writeU64(0x1000, 0x1122334455667788n)
    expect(other.readU32(0x1004)).toBe(0x11223344)
    expect(other.readU16(0x1000)).toBe(0x7788)
    expect(other.size).toBe(memory.size)
    expect(() => memory.readU8(2 * MIB)).toThrow(/not all RAM/)
  })

  it('refuses sizes that cannot be', () => {
    for (const size of [0, 1, 1.5, -3, MAX_RAM_MIB + 1, Number.NaN]) {
      expect(() => GuestMemory.create(size)).toThrow(/whole number of MiB/)
    }
  })
})
