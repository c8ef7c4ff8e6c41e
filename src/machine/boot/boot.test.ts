/** Kernels into guest memory: what is loaded where, what the CPU starts with, and what is refused. */
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import type { SystemRegisters } from '../../accel/contract.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { MAX_RAM_MIB, MIB } from '../../memory/layout.ts'
import { COMMAND_LINE, MP_TABLE, PD_ADDRESS, PVH_START_INFO, ZERO_PAGE } from '../address-map.ts'
import { MachineError, type MachineErrorCode } from '../errors.ts'
import { parseElf } from './elf.ts'
import { bzImageFixture, elfFixture } from './kernel-fixtures.ts'
import { kernelElf, parseKernel } from './kernel-image.ts'
import { BytesSource } from './kernel-source.ts'
import { type BootSettings, loadGuest } from './load.ts'

const base: Omit<BootSettings, 'kernel'> = {
  commandLine: 'console=ttyS0',
  cpus: 2,
  slots: 1,
  generationId: randomBytes(16),
}

function refused(run: () => unknown, code: MachineErrorCode, message: RegExp): void {
  try {
    run()
  } catch (error) {
    expect(error).toBeInstanceOf(MachineError)
    expect((error as MachineError).code).toBe(code)
    expect((error as MachineError).message).toMatch(message)
    return
  }
  expect.unreachable(`accepted, but ${message} was expected`)
}

const compress = (command: string, args: string[], input: Uint8Array): Uint8Array => {
  const packed = spawnSync(command, args, { input }).stdout
  const size = Buffer.alloc(4)
  size.writeUInt32LE(input.length)
  return Buffer.concat([packed, size])
}

describe('kernels that are refused', () => {
  it.each<[string, Uint8Array, RegExp]>([
    ['empty', new Uint8Array(0), /empty/],
    ['text', new TextEncoder().encode('#!/bin/sh\necho hello\n'), /neither an ELF vmlinux nor a bzImage/],
    ['32-bit', elfFixture({ class: 1 }), /32-bit/],
    ['big-endian', elfFixture({ endian: 2 }), /big-endian/],
    ['AArch64', elfFixture({ machine: 183 }), /AArch64/],
    ['an object file', elfFixture({ type: 1 }), /not an executable/],
    ['only a header', elfFixture().subarray(0, 40), /truncated/],
    ['cut in its headers', elfFixture().subarray(0, 80), /truncated/],
    ['cut in its content', elfFixture().subarray(0, -1), /truncated/],
    ['loaded too low', elfFixture({ segments: [{ address: 0x8000, content: Uint8Array.of(1) }] }), /below 1 MiB/],
    [
      'overlapping',
      elfFixture({
        segments: [
          { address: 0x10_0000, content: new Uint8Array(64), memorySize: 0x2000 },
          { address: 0x10_1fff, content: new Uint8Array(64) },
        ],
      }),
      /overlap/,
    ],
    [
      'larger in the file than in memory',
      elfFixture({ segments: [{ address: 0x10_0000, content: new Uint8Array(64), memorySize: 32 }] }),
      /larger in the file/,
    ],
    ['entered elsewhere', elfFixture({ entry: 0x50_0000 }), /entry point 0x500000 outside/],
    ['entered elsewhere by PVH', elfFixture({ pvhEntry: 0x20_0000 }), /PVH entry point/],
    ['an old bzImage', bzImageFixture(new Uint8Array(64), 0x204), /protocol 2\.4/],
    ['a 32-bit bzImage', bzImageFixture(new Uint8Array(64), 0x20f, 0), /32-bit bzImage/],
    ['a bzImage cut short', bzImageFixture(gzipSync(elfFixture())).subarray(0, -9), /truncated/],
    ['a bzImage of nothing known', bzImageFixture(new Uint8Array(64)), /no known compression/],
    ['a bzImage of text', bzImageFixture(gzipSync('not a kernel at all')), /not an ELF file/],
  ])('%s', (_name, image, message) => refused(() => parseKernel(image), 'BAD_KERNEL', message))

  it('a foreign program that this machine has', () => {
    // A real ELF file that is no kernel: position-independent, loaded at 0.
    refused(() => parseKernel(readFileSync('/bin/true')), 'BAD_KERNEL', /below 1 MiB/)
  })

  it('a kernel or an initrd that does not fit', () => {
    const memory = GuestMemory.create(2)
    const large = elfFixture({ segments: [{ address: 0x10_0000, content: Uint8Array.of(1), memorySize: 2 * MIB }] })
    refused(() => loadGuest(memory, { ...base, kernel: large }), 'DOES_NOT_FIT', /at least 35 MiB/)
    const initrd = new Uint8Array(MIB)
    refused(() => loadGuest(memory, { ...base, kernel: elfFixture(), initrd }), 'DOES_NOT_FIT', /at least 3 MiB/)
    refused(
      () => loadGuest(memory, { ...base, kernel: elfFixture(), initrd: new Uint8Array(0) }),
      'BAD_INITRD',
      /empty/,
    )
  })

  it('a command line that is too long or has a NUL', () => {
    const memory = GuestMemory.create(2)
    const kernel = elfFixture()
    refused(() => loadGuest(memory, { ...base, kernel, commandLine: 'x'.repeat(2048) }), 'BAD_SETTING', /2048 bytes/)
    refused(() => loadGuest(memory, { ...base, kernel, commandLine: 'a\0b' }), 'BAD_SETTING', /NUL/)
    refused(() => loadGuest(memory, { ...base, kernel, protocol: 'pvh' }), 'BAD_KERNEL', /no PVH entry/)
  })

  it('seeded damage to an ELF file or a bzImage: a typed error or a kernel, nothing else', () => {
    let seed = 7
    const random = (below: number): number => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
      return (seed >>> 4) % below
    }
    const originals = [elfFixture({ pvhEntry: 0x10_0000 }), bzImageFixture(gzipSync(elfFixture()))]
    const memory = GuestMemory.create(4)
    let refusals = 0
    for (let round = 0; round < 1000; round++) {
      const broken = Uint8Array.from(originals[round % 2]!)
      for (let n = 1 + random(3); n > 0; n--) broken[random(broken.length)] = random(2) ? random(256) : 0xff
      try {
        loadGuest(memory, { ...base, kernel: broken.subarray(0, random(4) ? broken.length : random(broken.length)) })
      } catch (error) {
        expect(error).toBeInstanceOf(MachineError)
        refusals++
      }
    }
    expect(refusals).toBeGreaterThan(300)
  })
})

describe('kernels that are loaded', () => {
  const elf = elfFixture({
    pvhEntry: 0x10_0010,
    entry: 0x10_0000,
    segments: [{ address: 0x10_0000, content: new Uint8Array(64).fill(0x90), memorySize: 0x1000 }],
  })

  it.each([
    ['gzip', gzipSync(elf)],
    ['LZ4', compress('lz4', ['-l', '-c', '-z'], elf)],
    ['XZ', compress('xz', ['--check=crc32', '--x86', '--lzma2', '-c'], elf)],
    ['zstd', compress('zstd', ['-c'], elf)],
  ])('from a bzImage compressed with %s', (_name, payload) => {
    expect(Buffer.compare(kernelElf(bzImageFixture(payload)), elf)).toBe(0)
  })

  it('refuses a bzImage whose size does not agree', () => {
    const payload = compress('lz4', ['-l', '-c', '-z'], elf)
    payload[payload.length - 4]! ^= 1
    refused(() => kernelElf(bzImageFixture(payload)), 'BAD_KERNEL', /where its file says/)
  })

  it('by PVH: start_info, memory map, module, flat segments without paging', () => {
    const memory = GuestMemory.create(16)
    memory.slice(0x10_0000, 0x1000).fill(0xcc)
    const initrd = Uint8Array.of(1, 2, 3)
    const state = loadGuest(memory, { ...base, kernel: elf, initrd })
    expect(memory.readU8(0x10_003f)).toBe(0x90)
    expect(memory.readU8(0x10_0040)).toBe(0)
    expect(state.registers.rip).toBe(0x10_0010n)
    expect(state.registers.general[3]).toBe(BigInt(PVH_START_INFO))
    expect(memory.readU32(PVH_START_INFO)).toBe(0x336ec578)
    const module = Number(memory.readU64(PVH_START_INFO + 16))
    const at = Number(memory.readU64(module))
    expect(at).toBe(16 * MIB - 4096)
    expect([...memory.slice(at, 3)]).toEqual([1, 2, 3])
    expect(Buffer.from(memory.slice(Number(memory.readU64(PVH_START_INFO + 24)), 14)).toString()).toBe(
      'console=ttyS0\0',
    )
    expect(memory.readU32(PVH_START_INFO + 48)).toBe(3)
    const system = state.system as SystemRegisters
    expect([system.cr0, system.cs.attributes, system.cs.limit]).toEqual([0x11n, 0xc09b, 0xffffffff])
  })

  it('by the 64-bit protocol: zero page, e820 around the MMIO hole, page tables', () => {
    const memory = GuestMemory.create(MAX_RAM_MIB)
    const state = loadGuest(memory, { ...base, kernel: elf, protocol: 'linux64' })
    expect(state.registers.rip).toBe(0x10_0000n)
    expect(state.registers.general[6]).toBe(BigInt(ZERO_PAGE))
    expect(memory.readU16(ZERO_PAGE + 0x1fe)).toBe(0xaa55)
    expect(memory.readU32(ZERO_PAGE + 0x228)).toBe(COMMAND_LINE)
    expect(memory.readU8(ZERO_PAGE + 0x1e8)).toBe(4)
    expect(memory.readU64(ZERO_PAGE + 0x2d0 + 60)).toBe(0x1_0000_0000n)
    expect(memory.readU64(PD_ADDRESS + 8)).toBe(0x20_0083n)
    const { system } = state
    expect([system.cr0, system.cr4, system.efer]).toEqual([0x8000_0011n, 0x20n, 0x500n])
    // The descriptors in memory are those that are loaded: L and G set for code.
    expect(memory.readU64(0x508)).toBe(0x00af_9b00_0000_ffffn)
  })

  it('with a BIOS entry that resets, as a disassembler reads it', () => {
    const memory = GuestMemory.create(4)
    loadGuest(memory, { ...base, kernel: elf })
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-bios-'))
    writeFileSync(join(folder, 'bios'), memory.slice(0xf_fff0, 9))
    const args = ['-D', '-b', 'binary', '-m', 'i8086', '--no-show-raw-insn', join(folder, 'bios')]
    const listing = spawnSync('objdump', args, { encoding: 'utf8' }).stdout.replace(/\s+/g, ' ')
    rmSync(folder, { recursive: true })
    expect(listing).toMatch(/mov \$0x602,%dx .*mov \$0x1,%al .*out %al,\(%dx\) .*hlt .*jmp 0x6/)
  })

  it('with an MP table whose sums are right', () => {
    const memory = GuestMemory.create(4)
    loadGuest(memory, { ...base, kernel: elf })
    const sum = (bytes: Uint8Array) => bytes.reduce((total, byte) => (total + byte) & 0xff, 0)
    expect(sum(memory.slice(MP_TABLE, 16))).toBe(0)
    const table = memory.readU32(MP_TABLE + 4)
    const length = memory.readU16(table + 4)
    expect(sum(memory.slice(table, length))).toBe(0)
    expect(memory.readU16(table + 34)).toBe(2 + 2 + 24 + 2)
    expect(length).toBe(44 + 2 * 20 + (2 + 24 + 2) * 8)
  })

  it('from a file that is read, mapped or compressed, to the same memory', () => {
    const content = Uint8Array.from({ length: 3 * 4096 + 77 }, (_, i) => i * 31)
    const aligned = new Uint8Array(8192 + content.length)
    // The content at a whole page of the file, as linkers put it.
    const head = elfFixture({ segments: [{ address: 0x10_0000, content, memorySize: 5 * 4096, offset: 8192 }] })
    aligned.set(head.subarray(0, 64 + 56))
    aligned.set(content, 8192)
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-load-'))
    const path = join(folder, 'vmlinux')
    const compressed = join(folder, 'bzImage')
    writeFileSync(path, aligned)
    writeFileSync(compressed, bzImageFixture(gzipSync(aligned)))
    const load = (kernel: BootSettings['kernel']): Uint8Array => {
      const memory = GuestMemory.create(4)
      memory.slice(0x10_0000, 0x10000).fill(0xcc)
      loadGuest(memory, { ...base, kernel })
      return memory.slice(0x10_0000, 0x10000)
    }
    const expected = load(aligned)
    expect(expected.subarray(0, content.length).every((byte, i) => byte === content[i])).toBe(true)
    for (const kernel of [{ path }, { path, immutable: true }, { path: compressed }]) {
      expect(Buffer.compare(load(kernel), expected)).toBe(0)
    }
    // What a guest writes stays in the guest.
    const memory = GuestMemory.create(4)
    loadGuest(memory, { ...base, kernel: { path, immutable: true } })
    memory.writeU32(0x10_0000, 0)
    expect(Buffer.compare(readFileSync(path), aligned)).toBe(0)
    rmSync(folder, { recursive: true })
    refused(() => loadGuest(memory, { ...base, kernel: { path } }), 'BAD_KERNEL', /cannot be opened/)
  })

  it('parses a kernel without a PVH note', () =>
    expect(parseElf(new BytesSource(elfFixture())).pvhEntry).toBeUndefined())
})
