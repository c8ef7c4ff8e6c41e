/** MMX, SSE to SSE4.2, AES, PCLMULQDQ and SHA: every opcode with every mandatory prefix, defined or not. */
import type { Builder } from './builder.ts'
import type { Shape } from './shape.ts'

type Kind = 'integer' | 'single' | 'double'

const PREFIXES: readonly (readonly number[])[] = [[], [0x66], [0xf3], [0xf2]]

interface Row {
  readonly map: 0x0f | 0x38 | 0x3a
  readonly opcode: number
  readonly immediate?: boolean
  /** Fixed ModRM.reg values (groups). */
  readonly regs?: readonly number[]
  readonly form?: 'register' | 'memory'
  readonly floating?: boolean
  readonly approximate?: boolean
  /** Prefixes (by index in PREFIXES) that exist; all when absent. */
  readonly prefixes?: readonly number[]
  /** Memory operands need not be aligned. */
  readonly unaligned?: boolean
  /** AMD's SHA does not check the alignment that Intel's manual asks for: only aligned operands. */
  readonly sha?: boolean
}

function range(from: number, to: number, map: Row['map'], extra: Partial<Row> = {}): Row[] {
  const rows: Row[] = []
  for (let opcode = from; opcode <= to; opcode++) rows.push({ map, opcode, ...extra })
  return rows
}

const ROWS: readonly Row[] = [
  ...range(0x10, 0x17, 0x0f, { floating: true }),
  ...range(0x28, 0x2a, 0x0f, { floating: true }),
  // F3 and F2 are AMD's own MOVNTSS and MOVNTSD.
  { map: 0x0f, opcode: 0x2b, floating: true, prefixes: [0, 1] },
  ...range(0x2c, 0x2f, 0x0f, { floating: true }),
  { map: 0x0f, opcode: 0x50, form: 'register', floating: true },
  { map: 0x0f, opcode: 0x51, floating: true },
  { map: 0x0f, opcode: 0x52, floating: true, approximate: true },
  { map: 0x0f, opcode: 0x53, floating: true, approximate: true },
  ...range(0x54, 0x5f, 0x0f, { floating: true }),
  ...range(0x60, 0x6f, 0x0f),
  { map: 0x0f, opcode: 0x70, immediate: true },
  ...range(0x71, 0x73, 0x0f, { immediate: true, regs: [0, 1, 2, 3, 4, 5, 6, 7] }),
  ...range(0x74, 0x76, 0x0f),
  { map: 0x0f, opcode: 0x7c, floating: true },
  { map: 0x0f, opcode: 0x7d, floating: true },
  { map: 0x0f, opcode: 0x7e },
  { map: 0x0f, opcode: 0x7f },
  { map: 0x0f, opcode: 0xc2, immediate: true, floating: true },
  { map: 0x0f, opcode: 0xc3, form: 'memory', prefixes: [0] },
  { map: 0x0f, opcode: 0xc4, immediate: true },
  { map: 0x0f, opcode: 0xc5, immediate: true },
  { map: 0x0f, opcode: 0xc6, immediate: true, floating: true },
  { map: 0x0f, opcode: 0xd0, floating: true },
  ...range(0xd1, 0xe5, 0x0f),
  { map: 0x0f, opcode: 0xe6, floating: true },
  ...range(0xe7, 0xfe, 0x0f),
  ...range(0x00, 0x0b, 0x38),
  { map: 0x38, opcode: 0x10, prefixes: [0, 1] },
  { map: 0x38, opcode: 0x14, prefixes: [0, 1] },
  { map: 0x38, opcode: 0x15, prefixes: [0, 1] },
  { map: 0x38, opcode: 0x17, prefixes: [0, 1] },
  ...range(0x1c, 0x1e, 0x38),
  ...range(0x20, 0x25, 0x38, { prefixes: [0, 1] }),
  ...range(0x28, 0x2b, 0x38, { prefixes: [0, 1] }),
  ...range(0x30, 0x35, 0x38, { prefixes: [0, 1] }),
  ...range(0x37, 0x41, 0x38, { prefixes: [0, 1] }),
  ...range(0xc8, 0xcd, 0x38, { prefixes: [0], sha: true }),
  ...range(0xdb, 0xdf, 0x38, { prefixes: [1] }),
  ...range(0x08, 0x0b, 0x3a, { prefixes: [1], immediate: true, floating: true }),
  ...range(0x0c, 0x0d, 0x3a, { prefixes: [1], immediate: true }),
  { map: 0x3a, opcode: 0x0e, prefixes: [1], immediate: true },
  { map: 0x3a, opcode: 0x0f, prefixes: [0, 1], immediate: true },
  ...range(0x14, 0x17, 0x3a, { prefixes: [1], immediate: true }),
  ...range(0x20, 0x22, 0x3a, { prefixes: [1], immediate: true }),
  ...range(0x40, 0x41, 0x3a, { prefixes: [1], immediate: true, floating: true }),
  { map: 0x3a, opcode: 0x42, prefixes: [1], immediate: true },
  { map: 0x3a, opcode: 0x44, prefixes: [1], immediate: true },
  ...range(0x60, 0x63, 0x3a, { prefixes: [1], immediate: true, unaligned: true }),
  { map: 0x3a, opcode: 0xcc, prefixes: [0], immediate: true, sha: true },
  { map: 0x3a, opcode: 0xdf, prefixes: [1], immediate: true },
]

/** Integer opcodes that F3 or F2 mean something for. */
const FEATURED = new Set([0x6f, 0x70, 0x7e, 0x7f, 0xd6, 0xf0])

function kindOf(row: Row, prefix: number, b: Builder): Kind {
  if (!row.floating) return 'integer'
  if (b.random.once(12)) return b.random.pick(['integer', 'single', 'double'])
  // 66 and F2 mean doubles, most of the time; the rest of the conversions get what they convert from.
  if (row.map === 0x3a) return row.opcode & 1 ? 'double' : 'single'
  if (row.opcode === 0xe6) return prefix === 2 ? 'integer' : 'double'
  if (row.opcode === 0x5b) return prefix === 0 ? 'integer' : 'single'
  if (row.opcode === 0x7c || row.opcode === 0x7d || row.opcode === 0xd0) return prefix === 1 ? 'double' : 'single'
  return prefix === 1 || prefix === 3 ? 'double' : 'single'
}

function emit(row: Row, prefix: number, b: Builder): void {
  b.randomMmx()
  b.randomVectors(kindOf(row, prefix, b))
  if (row.approximate) b.tolerance = 'approximate'
  // String compares by explicit length: small lengths, of either sign.
  if (row.map === 0x3a && (row.opcode & 0xfe) === 0x60) {
    b.setRegister(0, BigInt(b.random.below(40) - 20))
    b.setRegister(2, BigInt(b.random.below(40) - 20))
  }
  if (row.map === 0x0f && row.opcode === 0xf7) b.setRegister(7, BigInt(b.windowAddress(16)))
  b.encode({
    prefixes: PREFIXES[prefix]!,
    rexW: b.random.once(5),
    opcode: row.map === 0x0f ? [0x0f, row.opcode] : [0x0f, row.map, row.opcode],
    modrm: {
      size: 16,
      aligned: row.sha ? 'always' : !row.unaligned,
      ...(row.form ? { form: row.form } : {}),
      ...(row.regs ? { reg: b.random.pick(row.regs) } : {}),
    },
    ...(row.immediate ? { immediate: 1 } : {}),
  })
}

function shapes(): Shape[] {
  const all: Shape[] = []
  for (const row of ROWS)
    for (const prefix of row.prefixes ?? [0, 1, 2, 3]) {
      const map = row.map === 0x0f ? '0f' : row.map === 0x38 ? '0f38' : '0f3a'
      const name = `vector ${['', '66 ', 'f3 ', 'f2 '][prefix]}${map} ${row.opcode.toString(16).padStart(2, '0')}`
      const rare = !row.floating && prefix >= 2 && !FEATURED.has(row.opcode)
      all.push({ name, rare, build: b => emit(row, prefix, b) })
    }
  all.push({
    name: 'emms',
    build: b => {
      b.randomMmx()
      b.bytes(0x0f, 0x77)
    },
  })
  return all
}

export const VECTOR_SHAPES: readonly Shape[] = shapes()
