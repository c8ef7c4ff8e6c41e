/** Little-endian tables, written front to back. For firmware tables at boot: not for hot paths. */
export class ByteWriter {
  #buffer = new Uint8Array(256)
  #length = 0

  get length(): number {
    return this.#length
  }

  get bytes(): Uint8Array {
    return this.#buffer.subarray(0, this.#length)
  }

  u8(value: number): this {
    this.#reserve(1)[0] = value
    return this
  }

  u16(value: number): this {
    return this.u8(value & 0xff).u8(value >>> 8)
  }

  u32(value: number): this {
    return this.u16(value & 0xffff).u16(value >>> 16)
  }

  u64(value: number): this {
    return this.u32(value % 0x1_0000_0000).u32(Math.floor(value / 0x1_0000_0000))
  }

  /** Exactly `width` bytes of ASCII, padded with `padding` (spaces unless told). */
  text(value: string, width: number, padding = 0x20): this {
    const target = this.#reserve(width).fill(padding)
    for (let i = 0; i < width && i < value.length; i++) target[i] = value.charCodeAt(i)
    return this
  }

  put(bytes: Uint8Array | readonly number[]): this {
    this.#reserve(bytes.length).set(bytes)
    return this
  }

  zeros(count: number): this {
    this.#reserve(count).fill(0)
    return this
  }

  setU8(at: number, value: number): void {
    this.#buffer[at] = value
  }

  setU16(at: number, value: number): void {
    this.#buffer[at] = value & 0xff
    this.#buffer[at + 1] = value >>> 8
  }

  setU32(at: number, value: number): void {
    this.setU16(at, value & 0xffff)
    this.setU16(at + 2, value >>> 16)
  }

  #reserve(count: number): Uint8Array {
    const end = this.#length + count
    if (end > this.#buffer.length) {
      const larger = new Uint8Array(Math.max(end, this.#buffer.length * 2))
      larger.set(this.bytes)
      this.#buffer = larger
    }
    const part = this.#buffer.subarray(this.#length, end)
    this.#length = end
    return part
  }
}

/** The byte that makes the sum of all bytes zero modulo 256, as MP and ACPI tables want it. */
export function checksum(bytes: Uint8Array): number {
  let sum = 0
  for (const byte of bytes) sum += byte
  return -sum & 0xff
}
