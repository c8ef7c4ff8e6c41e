/**
 * The protocol between the host and the agent in the guest; guest/init/protocol.h is its other copy and explains it.
 * `protocol.test.ts` compares the two.
 */

export const PROTOCOL_VERSION = 1
/** The vsock port on which the agent listens. */
export const AGENT_PORT = 1024
export const FRAME_HEADER_SIZE = 12
export const FRAME_PAYLOAD_MAX = 64 * 1024
/** The credit that each stream of a channel starts with, in both directions. */
export const WINDOW_INITIAL = 256 * 1024

export const Frame = {
  HELLO: 1,
  DATA: 2,
  WINDOW: 3,
  SIGNAL: 4,
  RESIZE: 5,
  CLOSE: 6,
  EXEC: 16,
  READ_FILE: 17,
  WRITE_FILE: 18,
  TREE_OUT: 19,
  TREE_IN: 20,
  WATCH: 21,
  LIST_OUT: 22,
  STAT: 32,
  LIST: 33,
  MKDIR: 34,
  RENAME: 35,
  REMOVE: 36,
  CHMOD: 37,
  CLOCK: 40,
  GROW: 41,
  IDENTITY: 42,
  INFO: 43,
  SHUTDOWN: 44,
  SYNC: 45,
  STARTED: 64,
  EXIT: 65,
  RESULT: 66,
  EVENT: 67,
} as const
export type FrameType = (typeof Frame)[keyof typeof Frame]

export const Stream = { STDIN: 0, STDOUT: 1, STDERR: 2 } as const
export const FLAG_EOF = 1
export const ExecFlag = { TTY: 1, SURVIVES: 2 } as const
export const WriteFlag = { APPEND: 1, EXCLUSIVE: 2 } as const
export const ExitKind = { CODE: 0, SIGNAL: 1, NOT_STARTED: 2 } as const
export const ExitFlag = { TIMED_OUT: 1, CORE: 2 } as const
export const EventKind = { CREATED: 1, CHANGED: 2, REMOVED: 3, OVERFLOW: 4 } as const

/** Builds a payload. */
export class PayloadWriter {
  readonly #parts: Buffer[] = []

  u16(value: number): this {
    const part = Buffer.allocUnsafe(2)
    part.writeUInt16LE(value)
    return this.bytes(part)
  }
  u32(value: number): this {
    const part = Buffer.allocUnsafe(4)
    part.writeUInt32LE(value)
    return this.bytes(part)
  }
  u64(value: bigint): this {
    const part = Buffer.allocUnsafe(8)
    part.writeBigUInt64LE(value)
    return this.bytes(part)
  }
  string(text: string): this {
    const bytes = Buffer.from(text)
    return this.u32(bytes.length).bytes(bytes)
  }
  strings(list: readonly string[]): this {
    this.u32(list.length)
    for (const text of list) this.string(text)
    return this
  }
  bytes(part: Uint8Array): this {
    this.#parts.push(Buffer.from(part.buffer, part.byteOffset, part.byteLength))
    return this
  }
  finish(): Buffer {
    return Buffer.concat(this.#parts)
  }
}

/** Reads a payload from front to back. The guest wrote it, so every read is checked. */
export class PayloadReader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }
  get left(): number {
    return this.#bytes.length - this.#at
  }
  #take(size: number): number {
    if (size > this.left) throw new RangeError('the guest sent a truncated message')
    const at = this.#at
    this.#at += size
    return at
  }
  u8(): number {
    return this.#bytes.readUInt8(this.#take(1))
  }
  u32(): number {
    return this.#bytes.readUInt32LE(this.#take(4))
  }
  u64(): bigint {
    return this.#bytes.readBigUInt64LE(this.#take(8))
  }
  /** A 64-bit number that must be a safe integer, as sizes and times are. */
  number(): number {
    const value = Number(this.u64())
    if (!Number.isSafeInteger(value)) throw new RangeError('the guest sent a number out of range')
    return value
  }
  string(): string {
    const length = this.u32()
    const at = this.#take(length)
    return this.#bytes.toString('utf8', at, at + length)
  }
}
