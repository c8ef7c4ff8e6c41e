/**
 * Short runs of instructions that make flags and instructions that use them: what an interpreter that computes flags lazily, or a
 * compiler that drops dead ones, gets wrong first. Only instructions that define every flag they touch.
 */
import type { Builder } from './builder.ts'
import { CODE_BASE, CODE_STRIDE } from './case.ts'
import { type Shape, SIZES, type Size, sizePrefix } from './shape.ts'

/** ADD, ADC, SBB, SUB, CMP: by their number in the instruction set. */
const ARITHMETIC = [0, 2, 3, 5, 7] as const

function register(b: Builder, size: Size, opcode: number, reg?: number, immediate = 0): void {
  b.encode({
    prefixes: sizePrefix(size),
    rexW: size === 8,
    opcode: [size === 1 ? opcode & ~1 : opcode | 1],
    modrm: { form: 'register', size, ...(reg === undefined ? {} : { reg }) },
    ...(immediate ? { immediate } : {}),
  })
}

const PRODUCERS: readonly ((b: Builder) => void)[] = [
  b => register(b, b.random.pick(SIZES), b.random.pick(ARITHMETIC) * 8 + (b.random.once(2) ? 3 : 1)),
  b => register(b, b.random.pick(SIZES), 0xff, b.random.below(2)),
  b => register(b, b.random.pick(SIZES), 0xf7, 3),
  b => {
    const size = b.random.pick([2, 4, 8] as const)
    b.encode({
      prefixes: sizePrefix(size),
      rexW: size === 8,
      opcode: [0x83],
      modrm: { form: 'register', reg: b.random.pick(ARITHMETIC) },
      immediate: 1,
    })
  },
  b => b.encode({ opcode: [b.random.pick([0xf5, 0xf8, 0xf9, 0x9e])] }),
]

const CONSUMERS: readonly ((b: Builder) => void)[] = [
  b => b.encode({ opcode: [0x0f, 0x90 + b.random.below(16)], modrm: { form: 'register', size: 1 } }),
  b => b.encode({ rexW: b.random.once(2), opcode: [0x0f, 0x40 + b.random.below(16)], modrm: { form: 'register' } }),
  b => register(b, b.random.pick(SIZES), b.random.once(2) ? 0x11 : 0x19),
  b => register(b, b.random.pick(SIZES), 0xd1, 2 + b.random.below(2)),
  b => b.encode({ opcode: [0x9f] }),
  // INC and DEC keep the carry.
  b => register(b, b.random.pick(SIZES), 0xff, b.random.below(2)),
]

/** Jcc rel8 from here to the int3 padding at the end of the slot. */
function branch(b: Builder): void {
  const target = CODE_BASE + b.index * CODE_STRIDE + 48 + b.random.below(8)
  b.bytes(0x70 + b.random.below(16), target - (b.rip + b.codeLength + 2))
}

export const SEQUENCE_SHAPES: readonly Shape[] = [
  {
    name: 'sequence',
    build: b => {
      const pairs = 1 + b.random.below(2)
      for (let i = 0; i < pairs; i++) {
        b.random.pick(PRODUCERS)(b)
        b.random.pick(CONSUMERS)(b)
      }
      if (b.random.once(2)) branch(b)
    },
  },
]
