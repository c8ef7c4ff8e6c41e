/** A WebAssembly binary writer: one function body at a time, then a module around them. Only what the compiler needs. */

export const I32 = 0x7f
export const I64 = 0x7e
const VOID = 0x40

/** Opcodes with no immediates, by their name in the text format. */
export const OP = {
  unreachable: 0x00,
  return: 0x0f,
  drop: 0x1a,
  select: 0x1b,
  i32_eqz: 0x45,
  i32_eq: 0x46,
  i32_ne: 0x47,
  i32_le_s: 0x4c,
  i32_ge_s: 0x4e,
  i64_eqz: 0x50,
  i64_eq: 0x51,
  i64_ne: 0x52,
  i64_lt_s: 0x53,
  i64_lt_u: 0x54,
  i64_gt_s: 0x55,
  i64_gt_u: 0x56,
  i64_le_s: 0x57,
  i64_le_u: 0x58,
  i64_ge_s: 0x59,
  i64_ge_u: 0x5a,
  i32_add: 0x6a,
  i32_sub: 0x6b,
  i32_mul: 0x6c,
  i32_and: 0x71,
  i32_or: 0x72,
  i32_xor: 0x73,
  i32_shl: 0x74,
  i32_shr_s: 0x75,
  i32_shr_u: 0x76,
  i32_rotl: 0x77,
  i32_rotr: 0x78,
  i64_clz: 0x79,
  i64_ctz: 0x7a,
  i64_popcnt: 0x7b,
  i64_add: 0x7c,
  i64_sub: 0x7d,
  i64_mul: 0x7e,
  i64_and: 0x83,
  i64_or: 0x84,
  i64_xor: 0x85,
  i64_shl: 0x86,
  i64_shr_s: 0x87,
  i64_shr_u: 0x88,
  i64_rotl: 0x89,
  i64_rotr: 0x8a,
  i32_wrap: 0xa7,
  i64_extend_i32_s: 0xac,
  i64_extend_i32_u: 0xad,
  i64_extend8_s: 0xc2,
  i64_extend16_s: 0xc3,
  i64_extend32_s: 0xc4,
} as const

/** Memory instructions: opcode; alignment hints are always 0, any address is fine. */
export const MEM = {
  i32_load: 0x28,
  i64_load: 0x29,
  i64_load8_s: 0x30,
  i64_load8_u: 0x31,
  i64_load16_s: 0x32,
  i64_load16_u: 0x33,
  i64_load32_s: 0x34,
  i64_load32_u: 0x35,
  i32_store: 0x36,
  i64_store: 0x37,
  i64_store8: 0x3c,
  i64_store16: 0x3d,
  i64_store32: 0x3e,
} as const

/** Vector instructions, after the prefix 0xfd. */
export const SIMD = {
  load: 0x00,
  store: 0x0b,
  shuffle: 0x0d,
  i64x2_splat: 0x12,
  i64x2_replace_lane: 0x1e,
  i8x16_eq: 0x23,
  i8x16_gt_s: 0x27,
  i16x8_eq: 0x2d,
  i16x8_gt_s: 0x31,
  i32x4_eq: 0x37,
  i32x4_gt_s: 0x3b,
  and: 0x4e,
  or: 0x50,
  xor: 0x51,
  load32_zero: 0x5c,
  load64_zero: 0x5d,
  i8x16_bitmask: 0x64,
  i8x16_add: 0x6e,
  i8x16_sub: 0x71,
  i8x16_min_u: 0x77,
  i8x16_max_u: 0x79,
  i16x8_add: 0x8e,
  i16x8_sub: 0x91,
  i16x8_mul: 0x95,
  i16x8_min_s: 0x96,
  i16x8_max_s: 0x98,
  i32x4_add: 0xae,
  i32x4_sub: 0xb1,
  i64x2_add: 0xce,
  i64x2_sub: 0xd1,
} as const

/** A place that `br` can go to: made by `block`, `loop` or `if`. */
export type Label = number

/** Which way the `if` at `at` bytes goes as a rule. */
export interface BranchHint {
  readonly at: number
  readonly likely: boolean
}

export class Code {
  #bytes = new Uint8Array(4096)
  #length = 0
  #depth = 0
  #hints: BranchHint[] = []

  get hints(): readonly BranchHint[] {
    return this.#hints
  }

  get length(): number {
    return this.#length
  }

  bytes(): Uint8Array {
    return this.#bytes.subarray(0, this.#length)
  }

  clear(): void {
    this.#length = 0
    this.#depth = 0
    this.#hints = []
  }

  byte(value: number): void {
    if (this.#length === this.#bytes.length) {
      const larger = new Uint8Array(this.#bytes.length * 2)
      larger.set(this.#bytes)
      this.#bytes = larger
    }
    this.#bytes[this.#length++] = value
  }

  append(other: Uint8Array): void {
    while (this.#length + other.length > this.#bytes.length) {
      const larger = new Uint8Array(this.#bytes.length * 2)
      larger.set(this.#bytes)
      this.#bytes = larger
    }
    this.#bytes.set(other, this.#length)
    this.#length += other.length
  }

  /** Unsigned LEB128 of a number below 2^32. */
  u32(value: number): void {
    let rest = value >>> 0
    while (rest >= 0x80) {
      this.byte((rest & 0x7f) | 0x80)
      rest >>>= 7
    }
    this.byte(rest)
  }

  /** Signed LEB128 of a 32-bit number. */
  #s32(value: number): void {
    let rest = value | 0
    while (rest < -64 || rest > 63) {
      this.byte((rest & 0x7f) | 0x80)
      rest >>= 7
    }
    this.byte(rest & 0x7f)
  }

  /** Signed LEB128 of a 64-bit number given by halves. */
  #s64(low: number, high: number): void {
    let lo = low | 0
    let hi = high | 0
    while (hi !== lo >> 31 || lo < -64 || lo > 63) {
      this.byte((lo & 0x7f) | 0x80)
      lo = (lo >>> 7) | (hi << 25)
      hi >>= 7
    }
    this.byte(lo & 0x7f)
  }

  op(opcode: number): void {
    this.byte(opcode)
  }

  get(local: number): void {
    this.byte(0x20)
    this.u32(local)
  }

  set(local: number): void {
    this.byte(0x21)
    this.u32(local)
  }

  tee(local: number): void {
    this.byte(0x22)
    this.u32(local)
  }

  i32(value: number): void {
    this.byte(0x41)
    this.#s32(value)
  }

  /** i64.const of a 32-bit number, sign-extended. */
  i64(value: number): void {
    this.byte(0x42)
    this.#s64(value, value >> 31)
  }

  i64Halves(low: number, high: number): void {
    this.byte(0x42)
    this.#s64(low, high)
  }

  memory(opcode: number, offset: number): void {
    this.byte(opcode)
    this.byte(0)
    this.u32(offset)
  }

  /** Lane numbers, where an instruction has them, follow by `byte`. */
  simd(opcode: number): void {
    this.byte(0xfd)
    this.u32(opcode)
  }

  simdMemory(opcode: number, offset: number): void {
    this.simd(opcode)
    this.byte(0)
    this.u32(offset)
  }

  call(index: number): void {
    this.byte(0x10)
    this.u32(index)
  }

  block(type: number = VOID): Label {
    this.byte(0x02)
    this.byte(type)
    return ++this.#depth
  }

  loop(): Label {
    this.byte(0x03)
    this.byte(VOID)
    return ++this.#depth
  }

  if(type: number = VOID): Label {
    this.byte(0x04)
    this.byte(type)
    return ++this.#depth
  }

  /** An `if` that is `likely` taken or not: what is not likely is laid out of the way. */
  ifHinted(likely: boolean, type: number = VOID): Label {
    this.#hints.push({ at: this.#length, likely })
    return this.if(type)
  }

  else(): void {
    this.byte(0x05)
  }

  end(): void {
    this.byte(0x0b)
    this.#depth--
  }

  br(label: Label): void {
    this.byte(0x0c)
    this.u32(this.#depth - label)
  }

  brIf(label: Label): void {
    this.byte(0x0d)
    this.u32(this.#depth - label)
  }

  brTable(labels: readonly Label[]): void {
    this.byte(0x0e)
    this.u32(labels.length - 1)
    for (const label of labels) this.u32(this.#depth - label)
  }
}

export interface FunctionType {
  readonly params: readonly number[]
  readonly results: readonly number[]
}

export interface ImportedFunction {
  readonly name: string
  readonly type: FunctionType
}

/** A function that is exported under its number: its locals after the parameters, and its body without the final `end`. */
export interface FunctionBody {
  readonly locals: readonly number[]
  readonly code: Uint8Array
  readonly hints?: readonly BranchHint[]
}

function section(out: Code, id: number, fill: (body: Code) => void): void {
  const body = new Code()
  fill(body)
  out.byte(id)
  out.u32(body.length)
  out.append(body.bytes())
}

/** What stands before the code of a function, each local on its own. */
function writeLocals(out: Code, locals: readonly number[]): void {
  out.u32(locals.length)
  for (const local of locals) {
    out.u32(1)
    out.byte(local)
  }
}

/** The custom section of the branch hinting proposal; engines that do not know it pass over it. */
function branchHints(out: Code, firstIndex: number, functions: readonly FunctionBody[]): void {
  const hinted = functions.flatMap(({ hints }, index) => (hints && hints.length > 0 ? [{ hints, index }] : []))
  if (hinted.length === 0) return
  section(out, 0, body => {
    name(body, 'metadata.code.branch_hint')
    body.u32(hinted.length)
    const before = new Code()
    for (const { hints, index } of hinted) {
      body.u32(firstIndex + index)
      body.u32(hints.length)
      before.clear()
      writeLocals(before, functions[index]!.locals)
      for (const { at, likely } of hints) {
        body.u32(before.length + at)
        body.byte(1)
        body.byte(likely ? 1 : 0)
      }
    }
  })
}

function name(out: Code, text: string): void {
  const bytes = new TextEncoder().encode(text)
  out.u32(bytes.length)
  out.append(bytes)
}

/** Functions of one type over the imported shared memory `env.memory`; imports come from `env` as well. */
export function buildModule(
  type: FunctionType,
  imports: readonly ImportedFunction[],
  functions: readonly FunctionBody[],
): Uint8Array<ArrayBuffer> {
  const out = new Code()
  for (const byte of [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0]) out.byte(byte)
  section(out, 1, body => {
    const types = [type, ...imports.map(each => each.type)]
    body.u32(types.length)
    for (const each of types) {
      body.byte(0x60)
      body.u32(each.params.length)
      for (const param of each.params) body.byte(param)
      body.u32(each.results.length)
      for (const result of each.results) body.byte(result)
    }
  })
  section(out, 2, body => {
    body.u32(imports.length + 1)
    imports.forEach((each, index) => {
      name(body, 'env')
      name(body, each.name)
      body.byte(0)
      body.u32(index + 1)
    })
    name(body, 'env')
    name(body, 'memory')
    for (const byte of [2, 3]) body.byte(byte)
    body.u32(16)
    body.u32(65536)
  })
  section(out, 3, body => {
    body.u32(functions.length)
    for (let index = 0; index < functions.length; index++) body.u32(0)
  })
  section(out, 7, body => {
    body.u32(functions.length)
    functions.forEach((_, index) => {
      name(body, String(index))
      body.byte(0)
      body.u32(imports.length + index)
    })
  })
  branchHints(out, imports.length, functions)
  section(out, 10, body => {
    body.u32(functions.length)
    const one = new Code()
    for (const each of functions) {
      one.clear()
      writeLocals(one, each.locals)
      one.append(each.code)
      one.byte(0x0b)
      body.u32(one.length)
      body.append(one.bytes())
    }
  })
  return out.bytes().slice() as Uint8Array<ArrayBuffer>
}
