/**
 * A case of the oracle: machine code, the state it starts in, and afterwards the state it ended in. A record of 1,280 bytes that
 * native.c (struct state) and soft.ts share. Cases of a batch live side by side in it, and their code side by side in guest memory,
 * so that nothing is overwritten while a batch runs.
 */
export const STATE_SIZE = 1280
export const GENERAL = 0
export const RIP = 128
export const RFLAGS = 136
/** Before: length of the code. After: the vector that ended it, 3 when it ran to the int3 behind it. */
export const TRAP = 144
export const ERROR = 148
export const CR2 = 152
export const OUTSIDE = 160
export const CODE = 168
export const CODE_MAX = 48
export const FX = 256
export const FX_SIZE = 512
export const WINDOW = 768
export const WINDOW_SIZE = 512

/** Guest-virtual addresses, the same on both sides. */
export const CODE_BASE = 0x1000_0000
export const CODE_STRIDE = 64
export const DATA_BASE = 0x2000_0000
export const DATA_PAGES = 2
export const READ_ONLY_BASE = 0x2001_0000
export const WINDOW_BASE = DATA_BASE + 4096 - 256

/** Most cases of a batch: their code fills 256 pages. */
export const BATCH_MAX = 16384

/** What is told of a case beyond its record. */
export interface CaseInfo {
  readonly name: string
  /** RFLAGS bits that the architecture leaves undefined after it. */
  readonly undefinedFlags: number
  /** Units in the last place by which results may differ (transcendental and approximate instructions). */
  readonly tolerance: Tolerance
}

/** 'x87': 1 ulp of ST(0) and ST(1), C1 and PE free. 'approximate': RCPPS and RSQRTPS. 'area': CR2 may be anywhere in a large operand.
 * 'fxsave': the same, and MXCSR_MASK in memory. 'operands': where both DS:RSI and ES:RDI fault, CR2 may be of either, because processors differ.
 * 'none': every bit counts. */
export type Tolerance = 'none' | 'x87' | 'approximate' | 'area' | 'fxsave' | 'operands'

export class Batch {
  readonly bytes: Uint8Array
  readonly view: DataView
  readonly infos: CaseInfo[] = []

  constructor(capacity: number) {
    this.bytes = new Uint8Array(capacity * STATE_SIZE)
    this.view = new DataView(this.bytes.buffer)
  }

  get length(): number {
    return this.infos.length
  }

  record(index: number): Uint8Array {
    return this.bytes.subarray(index * STATE_SIZE, (index + 1) * STATE_SIZE)
  }

  code(index: number): Uint8Array {
    const at = index * STATE_SIZE
    return this.bytes.subarray(at + CODE, at + CODE + this.view.getUint32(at + TRAP, true))
  }
}

/** The byte that memory outside the window holds at `offset` of the data pages. */
export const patternByte = (offset: number): number => (offset * 7 + (offset >> 8)) & 0xff
