/**
 * A small language for the binary structures of <linux/kvm.h>: each is declared once, as C name, size, and members with
 * offset and width. Cold paths read them through `StructView`; the run loop takes the offsets and uses the shared memory.
 *
 * structs.test.ts compiles a C program that checks every declaration against the kernel's own header.
 */
export type Width = 1 | 2 | 4 | 8

/** A member: `count` items of `width` bytes. More than one is an array, or an embedded structure seen as bytes. */
export interface Member<W extends Width = Width> {
  readonly offset: number
  readonly width: W
  readonly count: number
}

export const u8 = (offset: number, count = 1): Member<1> => ({ offset, width: 1, count })
export const u16 = (offset: number, count = 1): Member<2> => ({ offset, width: 2, count })
export const u32 = (offset: number, count = 1): Member<4> => ({ offset, width: 4, count })
export const u64 = (offset: number, count = 1): Member<8> => ({ offset, width: 8, count })

type Members = Readonly<Record<string, Member>>
type ValueOf<M extends Member> = M extends Member<8> ? bigint : number

export class Struct<M extends Members> {
  /** The name after `struct` in C. */
  readonly name: string
  readonly size: number
  /** Keys are C member paths, such as `io.direction`. */
  readonly members: M

  constructor(name: string, size: number, members: M) {
    this.name = name
    this.size = size
    this.members = members
  }

  /** A zeroed instance, followed by `tail` bytes for a structure that ends in a flexible array. */
  create(tail = 0): StructView<M> {
    return new StructView(this, new Uint8Array(this.size + tail))
  }

  /** Reads and writes an instance that is elsewhere. */
  over(bytes: Uint8Array): StructView<M> {
    if (bytes.length < this.size) throw new RangeError(`${this.name} needs ${this.size} bytes, not ${bytes.length}`)
    return new StructView(this, bytes)
  }
}

export class StructView<M extends Members> {
  readonly bytes: Uint8Array
  readonly view: DataView
  readonly #members: M

  constructor(struct: Struct<M>, bytes: Uint8Array) {
    this.bytes = bytes
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
    this.#members = struct.members
  }

  get<K extends keyof M>(name: K): ValueOf<M[K]> {
    const { offset, width } = this.#members[name]!
    const value =
      width === 1
        ? this.view.getUint8(offset)
        : width === 2
          ? this.view.getUint16(offset, true)
          : width === 4
            ? this.view.getUint32(offset, true)
            : this.view.getBigUint64(offset, true)
    return value as ValueOf<M[K]>
  }

  set<K extends keyof M>(name: K, value: ValueOf<M[K]>): this {
    const { offset, width } = this.#members[name]!
    if (width === 8) this.view.setBigUint64(offset, BigInt(value), true)
    else if (width === 4) this.view.setUint32(offset, Number(value), true)
    else if (width === 2) this.view.setUint16(offset, Number(value), true)
    else this.view.setUint8(offset, Number(value))
    return this
  }

  /** The bytes of an array member or an embedded structure. */
  sub(name: keyof M): Uint8Array {
    const { offset, width, count } = this.#members[name]!
    return this.bytes.subarray(offset, offset + width * count)
  }
}
