/**
 * Writes one case: encodes an instruction with random registers and addressing form, and sets the registers so that its memory
 * operand lands in the window: anywhere in it, across its page boundary, at the edge of the mapped pages, now and then outside.
 */
import * as layout from './case.ts'
import type { Random } from './random.ts'
import { putValue } from './values.ts'

export interface Encoding {
  /** Legacy prefixes, in order; a mandatory one goes last. */
  readonly prefixes?: readonly number[]
  readonly rexW?: boolean
  /** No REX prefix at all. */
  readonly noRex?: boolean
  readonly opcode: readonly number[]
  /** With a ModRM byte: what is in its reg field, which forms it may take, and the size of its memory operand. */
  readonly modrm?: {
    readonly reg?: number
    readonly form?: 'register' | 'memory' | 'any'
    readonly size?: number
    readonly aligned?: boolean | 'always'
    /** Register numbers above 7 exist only with REX; false keeps rm below 8 (MMX). */
    readonly rm?: number
  }
  /** Opcode's low three bits are a register. */
  readonly registerInOpcode?: boolean
  readonly immediate?: number
  readonly immediateValue?: bigint
}

const RSP = 4

export class Builder {
  readonly #batch: layout.Batch
  readonly #at: number
  readonly #view: DataView
  readonly #code: number[] = []
  readonly rip: number
  undefinedFlags = 0
  tolerance: layout.Tolerance = 'none'

  readonly index: number
  readonly random: Random

  constructor(batch: layout.Batch, index: number, random: Random) {
    this.index = index
    this.random = random
    this.#batch = batch
    this.#at = index * layout.STATE_SIZE
    this.#view = batch.view
    // Slots at the end of a page lets instructions cross into the next one.
    this.rip = layout.CODE_BASE + index * layout.CODE_STRIDE + (random.once(3) ? random.below(16) : 0)
    for (let n = 0; n < 16; n++) putValue(random, 'integer', this.#view, this.#at + layout.GENERAL + n * 8)
    this.setRegister(RSP, BigInt(layout.WINDOW_BASE + 64 + random.below(48) * 8))
    let flags = 0x202 | (random.u32() & 0x8d5)
    if (random.once(4)) flags |= 0x400
    this.#view.setBigUint64(this.#at + layout.RFLAGS, BigInt(flags), true)
    this.#resetFpu()
    for (let i = 0; i < layout.WINDOW_SIZE; i += 4)
      this.#view.setUint32(this.#at + layout.WINDOW + i, random.once(4) ? 0 : random.u32(), true)
  }

  register(n: number): bigint {
    return this.#view.getBigUint64(this.#at + layout.GENERAL + n * 8, true)
  }

  setRegister(n: number, value: bigint): void {
    this.#view.setBigUint64(this.#at + layout.GENERAL + n * 8, value & 0xffff_ffff_ffff_ffffn, true)
  }

  get flags(): number {
    return this.#view.getUint32(this.#at + layout.RFLAGS, true)
  }

  #resetFpu(): void {
    const fx = this.#at + layout.FX
    this.#view.setUint16(fx, 0x37f, true)
    this.#view.setUint32(fx + 24, 0x1f80, true)
    this.#view.setUint32(fx + 28, 0xffff, true)
  }

  /** Fills the x87 stack and its control words with all sorts of things. */
  randomX87(): void {
    const { random } = this
    const fx = this.#at + layout.FX
    let control = 0x37f
    if (random.once(2)) control = (control & ~0xf00) | (random.below(4) << 10) | (random.pick([0, 2, 3, 3]) << 8)
    if (random.once(6)) control = (control & ~0x3f) | random.below(64)
    let status = (random.below(8) << 11) | (random.u32() & 0x4700)
    if (random.once(4)) status |= random.below(64)
    if (status & ~control & 0x3f) status |= random.once(8) ? 0x8080 : 0
    if (!(status & 0x80)) status &= ~(~control & 0x3f)
    this.#view.setUint16(fx, control, true)
    this.#view.setUint16(fx + 2, status, true)
    this.#view.setUint8(fx + 4, random.once(4) ? random.u32() : random.once(3) ? 0x7f << (random.below(8) & 0) : 0xff)
    for (let i = 0; i < 8; i++) putValue(random, 'extended', this.#view, fx + 32 + i * 16)
    // An almost full stack would make every push overflow: leave room at its end most of the time.
    if (random.once(2)) {
      const top = (status >> 11) & 7
      const tags = this.#view.getUint8(fx + 4) & ~(1 << ((top + 7) & 7)) & ~(1 << ((top + 6) & 7))
      this.#view.setUint8(fx + 4, tags)
    }
  }

  get x87Top(): number {
    return (this.#view.getUint16(this.#at + layout.FX + 2, true) >> 11) & 7
  }

  /** ST(n). */
  setExtended(n: number, mantissa: bigint, top: number): void {
    const at = this.#at + layout.FX + 32 + n * 16
    this.#view.setBigUint64(at, mantissa, true)
    this.#view.setUint16(at + 8, top, true)
  }

  /** Floating-point numbers of the memory formats, so that x87 loads meet every class. */
  randomVectorsInWindow(): void {
    const { random } = this
    const kind = random.below(4)
    for (let i = 0; i + 16 <= layout.WINDOW_SIZE; i += 8) {
      const at = this.#at + layout.WINDOW + i
      if (kind === 0) this.#vectorValue(at, 'single')
      else if (kind === 1) this.#vectorValue(at, 'double')
      else if (kind === 2) putValue(random, 'extended', this.#view, at)
      else this.#vectorValue(at, 'integer')
    }
  }

  /** An FXSAVE image over the whole window. */
  setFxImage(): void {
    const { random } = this
    const w = this.#at + layout.WINDOW
    for (let offset = 0; offset < 512; offset += 16)
      if (offset >= 32 && offset < 160) putValue(random, 'extended', this.#view, w + offset)
    this.#view.setUint16(w, random.u32(), true)
    this.#view.setUint16(w + 2, random.u32(), true)
    this.#view.setUint32(w + 24, random.once(6) ? random.u32() : random.u32() & 0xffff, true)
  }

  /** The window's bytes at a linear address, when `size` of them are in it. */
  windowAt(address: bigint | undefined, size: number): DataView | undefined {
    if (address === undefined) return undefined
    const offset = Number(address) - layout.WINDOW_BASE
    return offset >= 0 && offset + size <= layout.WINDOW_SIZE ? this.window(offset) : undefined
  }

  /** An address in the window for `size` bytes. */
  windowAddress(size: number): number {
    return Number(this.#target(size, false))
  }

  setX87(offset: number, value: number): void {
    this.#view.setUint16(this.#at + layout.FX + offset, value, true)
  }

  /** Fills the vector registers: 'integer', 'single' or 'double' values; MMX registers with integers. */
  randomVectors(kind: 'integer' | 'single' | 'double'): void {
    const { random } = this
    const fx = this.#at + layout.FX
    for (let i = 0; i < 256; i += 8) this.#vectorValue(fx + 160 + i, kind)
    for (let i = 0; i < layout.WINDOW_SIZE; i += 8)
      if (random.once(2)) this.#vectorValue(this.#at + layout.WINDOW + i, kind)
    let control = 0x1f80
    if (random.once(2)) control |= 0x20
    if (random.once(4)) control |= random.below(64)
    if (random.once(3)) control |= random.below(4) << 13
    if (random.once(6)) control |= 0x8000
    if (random.once(6)) control |= 0x40
    if (random.once(8)) control &= ~(random.below(64) << 7)
    this.#view.setUint32(fx + 24, control, true)
  }

  randomMmx(): void {
    const fx = this.#at + layout.FX
    const { random } = this
    this.#view.setUint8(fx + 4, random.u32())
    this.#view.setUint16(fx + 2, random.below(8) << 11, true)
    for (let i = 0; i < 8; i++) {
      putValue(random, 'integer', this.#view, fx + 32 + i * 16)
      this.#view.setUint16(fx + 40 + i * 16, random.once(2) ? 0xffff : random.u32(), true)
    }
  }

  #vectorValue(at: number, kind: 'integer' | 'single' | 'double'): void {
    putValue(this.random, kind, this.#view, at)
  }

  #byte(value: number): void {
    this.#code.push(value & 0xff)
  }

  bytes(...values: number[]): void {
    for (const value of values) this.#byte(value)
  }

  #immediate(size: number, value: bigint): void {
    for (let i = 0; i < size; i++) this.#byte(Number((value >> BigInt(i * 8)) & 0xffn))
  }

  #integer(): bigint {
    const at = new DataView(new ArrayBuffer(8))
    putValue(this.random, 'integer', at, 0)
    return at.getBigUint64(0, true)
  }

  /** A linear address for an operand of `size` bytes. */
  #target(size: number, aligned: boolean | 'always'): bigint {
    const { random } = this
    const step =
      aligned === 'always' || (aligned && !random.once(16)) ? Math.max(size, 1) : random.once(3) ? 1 : Math.max(size, 1)
    const room = layout.WINDOW_SIZE - size
    switch (random.below(aligned === 'always' ? 100 : size > 200 ? 4 : 40) + (aligned === 'always' ? 4 : 0)) {
      case 0: // the mapped pages' end and beginning
        if (size <= 200) {
          const edge = random.once(2) ? layout.DATA_BASE : layout.DATA_BASE + layout.DATA_PAGES * 4096
          return BigInt(edge - random.below(size + 1))
        }
        break
      case 1: // nothing there; not canonical; nothing at the bottom
        return random.once(2)
          ? BigInt(0x3000_0000 + random.below(64))
          : random.once(2)
            ? 0x8000_0000_0000n
            : random.u64()
      case 2: // read only, with a pattern of zeros
        return BigInt(layout.READ_ONLY_BASE + random.below(256) * step)
      case 3: // across the page boundary
        if (size > 1 && size <= 256) return BigInt(layout.WINDOW_BASE + 256 - 1 - random.below(size - 1))
    }
    if (room <= 0) return BigInt(layout.WINDOW_BASE & ~63)
    const base = layout.WINDOW_BASE
    return BigInt(base + Math.floor(random.below(room + 1) / step) * step)
  }

  /** Encodes an instruction and aims its memory operand. Returns the operand's address, or undefined. */
  encode(e: Encoding): bigint | undefined {
    const { random } = this
    const m = e.modrm
    const prefixes = [...(e.prefixes ?? [])]
    const form = m?.form ?? 'any'
    const memory = m !== undefined && (form === 'memory' || (form === 'any' && random.once(2)))
    const reg = m?.reg ?? random.below(e.noRex ? 8 : 16)
    let rm = m?.rm ?? random.below(e.noRex ? 8 : 16)
    let rex = e.rexW ? 0x48 : 0
    let size67 = false
    if (memory) {
      if (random.once(16)) {
        prefixes.unshift(0x67)
        size67 = true
      }
      if (random.once(12)) prefixes.unshift(random.pick([0x2e, 0x36, 0x3e, 0x26, 0x65]))
    }
    const gs = prefixes.includes(0x65)
    for (const prefix of prefixes) this.#byte(prefix)
    let index = 4
    let scale = 0
    let sib = false
    let mod = 3
    if (memory) {
      mod = random.below(3)
      sib = (rm & 7) === 4
      if (sib) {
        index = random.below(e.noRex ? 8 : 16)
        scale = random.below(4)
        rm = random.below(e.noRex ? 8 : 16)
        // The same register twice cannot be aimed exactly.
        if (m?.aligned === 'always' && (index === rm || (rm & 7) === 5)) index = 4
      }
    }
    if (!e.noRex) {
      if (reg & 8) rex |= 0x44
      if (rm & 8) rex |= 0x41
      if (memory && sib && index & 8) rex |= 0x42
      if (rex === 0 && random.once(6)) rex = 0x40
    }
    if (rex) this.#byte(rex)
    const opcode = [...e.opcode]
    if (e.registerInOpcode) opcode[opcode.length - 1]! |= rm & 7
    for (const byte of opcode) this.#byte(byte)
    let target: bigint | undefined
    if (m) target = this.#modrm(e, mod, reg, rm, sib, index, scale, memory, size67, gs)
    if (e.immediate) this.#immediate(e.immediate, e.immediateValue ?? this.#integer())
    return target
  }

  #modrm(
    e: Encoding,
    mod: number,
    reg: number,
    rm: number,
    sib: boolean,
    index: number,
    scale: number,
    memory: boolean,
    size67: boolean,
    gs: boolean,
  ): bigint | undefined {
    const { random } = this
    if (!memory) {
      this.#byte(0xc0 | ((reg & 7) << 3) | (rm & 7))
      return undefined
    }
    let target = this.#target(e.modrm!.size ?? 8, e.modrm!.aligned ?? false)
    const segment = gs ? BigInt(layout.DATA_BASE) : 0n
    const wanted = target - segment
    const noBase = mod === 0 && (rm & 7) === 5
    const hasIndex = sib && index !== 4
    const indexPart = hasIndex ? this.register(index) << BigInt(scale) : 0n
    this.#byte((mod << 6) | ((reg & 7) << 3) | (sib ? 4 : rm & 7))
    if (sib) this.#byte((scale << 6) | ((index & 7) << 3) | (rm & 7))
    if (noBase) {
      // RIP-relative, or an absolute displacement below a SIB byte.
      const next = BigInt(this.rip + this.#code.length + 4 + (e.immediate ?? 0))
      let displacement = wanted - indexPart - (sib ? 0n : next)
      if (sib && hasIndex) {
        // Aim with the index register instead: it is a multiple of its scale.
        const step = BigInt(1 << scale)
        displacement = BigInt(random.below(256)) - 128n + ((wanted - 128n) & (step - 1n))
        this.setRegister(index, (wanted - displacement) >> BigInt(scale))
      }
      this.#immediate(4, displacement)
      return target
    }
    const displacement = mod === 1 ? BigInt(random.below(256)) - 128n : mod === 2 ? BigInt(random.u32() | 0) : 0n
    if (hasIndex && index === rm) {
      // The same register twice: aim as near as its multiple allows.
      const factor = BigInt((1 << scale) + 1)
      const value = (wanted - displacement) / factor
      this.setRegister(rm, value)
      target = value * factor + displacement + segment
    } else this.setRegister(rm, wanted - displacement - indexPart)
    if (size67 && random.once(2)) this.setRegister(rm, this.register(rm) | 0xabcd_0000_0000_0000n)
    if (mod === 1) this.#immediate(1, displacement)
    if (mod === 2) this.#immediate(4, displacement)
    return target
  }

  /** Ends the case. */
  finish(name: string): void {
    if (this.#code.length > layout.CODE_MAX - 16) throw new Error(`${name}: ${this.#code.length} bytes of code`)
    const view = this.#view
    view.setBigUint64(this.#at + layout.RIP, BigInt(this.rip), true)
    view.setUint32(this.#at + layout.TRAP, this.#code.length, true)
    this.#batch.bytes.set(this.#code, this.#at + layout.CODE)
    this.#batch.infos.push({ name, undefinedFlags: this.undefinedFlags, tolerance: this.tolerance })
  }

  /** The record's bytes of an FXSAVE image or other data at window offset. */
  window(offset: number): DataView {
    return new DataView(this.#batch.bytes.buffer, this.#at + layout.WINDOW + offset)
  }

  get codeLength(): number {
    return this.#code.length
  }
}
