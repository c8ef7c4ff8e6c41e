/** The integer instructions: arithmetic, moves, shifts, bits, stack, strings and near transfers. */
import type { Builder } from './builder.ts'
import { CODE_BASE, CODE_STRIDE, WINDOW_BASE } from './case.ts'
import { AF, ARITHMETIC, CF, OF, PF, SF, type Shape, SIZES, type Size, sizePrefix, WIDE_SIZES, ZF } from './shape.ts'

const ALU = ['add', 'or', 'adc', 'sbb', 'and', 'sub', 'xor', 'cmp']

/** A byte or word-and-up opcode pair, by size. */
function sized(
  b: Builder,
  size: Size,
  opcode: readonly number[],
  extra: {
    reg?: number
    form?: 'register' | 'memory' | 'any'
    immediate?: number
    lock?: boolean
    prefixes?: number[]
  } = {},
): void {
  const last = opcode[opcode.length - 1]!
  const bytes = [...opcode.slice(0, -1), size === 1 ? last & ~1 : last | 1]
  b.encode({
    prefixes: [...(extra.lock ? [0xf0] : []), ...sizePrefix(size), ...(extra.prefixes ?? [])],
    rexW: size === 8,
    opcode: bytes,
    modrm: { size, ...(extra.reg === undefined ? {} : { reg: extra.reg }), form: extra.form ?? 'any' },
    ...(extra.immediate ? { immediate: extra.immediate } : {}),
  })
}

const immediateSize = (size: Size): number => (size === 8 ? 4 : size)

function alu(): Shape[] {
  const shapes: Shape[] = []
  ALU.forEach((name, op) => {
    const undefinedFlags = op === 1 || op === 4 || op === 6 ? AF : 0
    shapes.push({
      name: `${name} rm,r`,
      build: b => {
        b.undefinedFlags = undefinedFlags
        sized(b, b.random.pick(SIZES), [op * 8 + (b.random.once(2) ? 2 : 0)])
      },
    })
    shapes.push({
      name: `lock ${name}`,
      build: b => {
        b.undefinedFlags = undefinedFlags
        sized(b, b.random.pick(SIZES), [op * 8 + (b.random.once(6) ? 2 : 0)], {
          lock: true,
          form: b.random.once(6) ? 'register' : 'memory',
        })
      },
    })
    shapes.push({
      name: `${name} rm,imm`,
      build: b => {
        b.undefinedFlags = undefinedFlags
        const size = b.random.pick(SIZES)
        if (size !== 1 && b.random.once(2))
          b.encode({
            prefixes: sizePrefix(size),
            rexW: size === 8,
            opcode: [0x83],
            modrm: { reg: op, size },
            immediate: 1,
          })
        else sized(b, size, [0x81], { reg: op, immediate: immediateSize(size), lock: b.random.once(10) })
      },
    })
    shapes.push({
      name: `${name} acc,imm`,
      build: b => {
        b.undefinedFlags = undefinedFlags
        const size = b.random.pick(SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [op * 8 + (size === 1 ? 4 : 5)],
          immediate: immediateSize(size),
        })
      },
    })
  })
  shapes.push({
    name: 'test rm,r',
    build: b => {
      b.undefinedFlags = AF
      sized(b, b.random.pick(SIZES), [0x85])
    },
  })
  shapes.push({
    name: 'test rm,imm',
    build: b => {
      b.undefinedFlags = AF
      const size = b.random.pick(SIZES)
      sized(b, size, [0xf7], { reg: b.random.below(2), immediate: immediateSize(size) })
    },
  })
  shapes.push({
    name: 'not/neg',
    build: b => sized(b, b.random.pick(SIZES), [0xf7], { reg: 2 + b.random.below(2), lock: b.random.once(6) }),
  })
  shapes.push({
    name: 'inc/dec',
    build: b => sized(b, b.random.pick(SIZES), [0xff], { reg: b.random.below(2), lock: b.random.once(6) }),
  })
  return shapes
}

function multiply(): Shape[] {
  return [
    {
      name: 'mul/imul',
      build: b => {
        b.undefinedFlags = SF | ZF | AF | PF
        sized(b, b.random.pick(SIZES), [0xf7], { reg: 4 + b.random.below(2) })
      },
    },
    {
      name: 'div/idiv',
      build: b => {
        b.undefinedFlags = ARITHMETIC
        const size = b.random.pick(SIZES)
        // Mostly quotients that fit: a small or sign-extended high half.
        if (!b.random.once(3)) {
          const signed = b.random.once(2)
          b.setRegister(2, signed && b.register(0) >> 63n ? -1n : BigInt(b.random.below(4)))
          if (size === 1) b.setRegister(0, BigInt(b.random.below(0x1000)))
        }
        sized(b, size, [0xf7], { reg: 6 + b.random.below(2) })
      },
    },
    {
      name: 'imul r,rm',
      build: b => {
        b.undefinedFlags = SF | ZF | AF | PF
        const size = b.random.pick(WIDE_SIZES)
        b.encode({ prefixes: sizePrefix(size), rexW: size === 8, opcode: [0x0f, 0xaf], modrm: { size } })
      },
    },
    {
      name: 'imul r,rm,imm',
      build: b => {
        b.undefinedFlags = SF | ZF | AF | PF
        const size = b.random.pick(WIDE_SIZES)
        const byte = b.random.once(2)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [byte ? 0x6b : 0x69],
          modrm: { size },
          immediate: byte ? 1 : immediateSize(size),
        })
      },
    },
  ]
}

const SHIFTS = ['rol', 'ror', 'rcl', 'rcr', 'shl', 'shr', 'sal', 'sar']

/** Flags a shift or rotate by `count` (masked) leaves undefined. */
function shiftUndefined(op: number, count: number, size: Size): number {
  if (count === 0) return 0
  const bits = size * 8
  let flags = op >= 4 ? AF : 0
  if (op < 4) {
    // Rotates: OF is defined for one position only; RCL and RCR count modulo size + 1 for 8 and 16 bits.
    if (count !== 1) flags |= OF
  } else {
    if (count !== 1) flags |= OF
    if (count >= bits && op !== 7) flags |= CF
  }
  return flags
}

function shifts(): Shape[] {
  const shapes: Shape[] = []
  SHIFTS.forEach((name, op) => {
    shapes.push({
      name: `${name} rm,imm`,
      build: b => {
        const size = b.random.pick(SIZES)
        const count = b.random.once(4) ? b.random.below(256) : b.random.below(size * 8 + 2)
        b.undefinedFlags = shiftUndefined(op, count & (size === 8 ? 63 : 31), size)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [size === 1 ? 0xc0 : 0xc1],
          modrm: { reg: op, size },
          immediate: 1,
          immediateValue: BigInt(count),
        })
      },
    })
    shapes.push({
      name: `${name} rm,1`,
      build: b => {
        const size = b.random.pick(SIZES)
        b.undefinedFlags = shiftUndefined(op, 1, size)
        sized(b, size, [0xd1], { reg: op })
      },
    })
    shapes.push({
      name: `${name} rm,cl`,
      build: b => {
        const size = b.random.pick(SIZES)
        b.setRegister(1, BigInt(b.random.below(256)))
        sized(b, size, [0xd3], { reg: op })
        b.undefinedFlags = shiftUndefined(op, Number(b.register(1) & (size === 8 ? 63n : 31n)), size)
      },
    })
  })
  for (const [name, opcode] of [
    ['shld', 0xa4],
    ['shrd', 0xac],
  ] as const)
    shapes.push({
      name,
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        const byCl = b.random.once(2)
        // Beyond 16 the 16-bit forms are undefined.
        const count = size === 2 ? b.random.below(17) : b.random.below(64)
        b.setRegister(1, BigInt(count))
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, byCl ? opcode + 1 : opcode],
          modrm: { size },
          ...(byCl ? {} : { immediate: 1, immediateValue: BigInt(count) }),
        })
        // Aiming may have changed CL: keep to what is defined.
        const used = byCl ? Number(b.register(1) & (size === 8 ? 63n : 31n)) : count & (size === 8 ? 63 : 31)
        b.undefinedFlags = used === 0 ? 0 : used === 1 ? AF : AF | OF
        if (size === 2 && used > 16) b.setRegister(1, b.register(1) & ~31n)
        if (size === 2 && used > 16) b.undefinedFlags = ARITHMETIC
      },
    })
  return shapes
}

function bits(): Shape[] {
  return [
    {
      name: 'bt* rm,r',
      build: b => {
        b.undefinedFlags = OF | SF | AF | PF
        const size = b.random.pick(WIDE_SIZES)
        // A register index reaches memory far away: keep it small when the operand may be memory.
        const reg = b.random.pick([0, 1, 2, 3, 6, 7, 8, 9, 10, 11])
        b.setRegister(reg, BigInt(b.random.below(256)) - 128n)
        const opcode = b.random.pick([0xa3, 0xab, 0xb3, 0xbb])
        b.encode({
          prefixes: [...(opcode !== 0xa3 && b.random.once(5) ? [0xf0] : []), ...sizePrefix(size)],
          rexW: size === 8,
          opcode: [0x0f, opcode],
          modrm: { reg, size },
        })
      },
    },
    {
      name: 'bt* rm,imm',
      build: b => {
        b.undefinedFlags = OF | SF | AF | PF
        const size = b.random.pick(WIDE_SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, 0xba],
          modrm: { reg: 4 + b.random.below(4), size },
          immediate: 1,
        })
      },
    },
    {
      name: 'bsf/bsr',
      build: b => {
        b.undefinedFlags = ARITHMETIC & ~ZF
        const size = b.random.pick(WIDE_SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, 0xbc + b.random.below(2)],
          modrm: { size },
        })
      },
    },
    {
      // TZCNT and LZCNT are BSF and BSR where CPUID does not have them, as on our CPU; the host's has.
      name: 'popcnt',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({ prefixes: [...sizePrefix(size), 0xf3], rexW: size === 8, opcode: [0x0f, 0xb8], modrm: { size } })
      },
    },
    {
      name: 'bswap',
      build: b => b.encode({ rexW: b.random.once(2), opcode: [0x0f, 0xc8], registerInOpcode: true }),
    },
    {
      name: 'movbe',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, 0x38, 0xf0 + b.random.below(2)],
          modrm: { size, form: 'memory' },
        })
      },
    },
    {
      name: 'crc32',
      build: b => {
        const size = b.random.pick(SIZES)
        b.encode({
          prefixes: [...sizePrefix(size), 0xf2],
          rexW: size === 8,
          opcode: [0x0f, 0x38, size === 1 ? 0xf0 : 0xf1],
          modrm: { size },
        })
      },
    },
  ]
}

function moves(): Shape[] {
  return [
    { name: 'mov rm,r', build: b => sized(b, b.random.pick(SIZES), [b.random.once(2) ? 0x89 : 0x8b]) },
    {
      name: 'mov rm,imm',
      build: b => {
        const size = b.random.pick(SIZES)
        sized(b, size, [0xc7], { reg: 0, immediate: immediateSize(size) })
      },
    },
    {
      name: 'mov r,imm',
      build: b => {
        const size = b.random.pick(SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [size === 1 ? 0xb0 : 0xb8],
          registerInOpcode: true,
          immediate: size,
        })
      },
    },
    {
      name: 'mov moffs',
      build: b => {
        const size = b.random.pick(SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [(b.random.once(2) ? 0xa0 : 0xa2) | (size === 1 ? 0 : 1)],
          immediate: 8,
          immediateValue: BigInt(WINDOW_BASE + b.random.below(504)),
        })
      },
    },
    {
      name: 'movzx/movsx',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        const opcode = b.random.pick([0xb6, 0xb7, 0xbe, 0xbf])
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, opcode],
          modrm: { size: opcode & 1 ? 2 : 1 },
        })
      },
    },
    {
      name: 'movsxd',
      build: b => b.encode({ rexW: !b.random.once(4), opcode: [0x63], modrm: { size: 4 } }),
    },
    {
      name: 'lea',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({ prefixes: sizePrefix(size), rexW: size === 8, opcode: [0x8d], modrm: { form: 'memory' } })
      },
    },
    {
      name: 'lea register',
      build: b => b.encode({ opcode: [0x8d], modrm: { form: 'register' } }),
    },
    { name: 'xchg', build: b => sized(b, b.random.pick(SIZES), [0x87], { lock: b.random.once(4) }) },
    {
      name: 'xchg acc,r',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({ prefixes: sizePrefix(size), rexW: size === 8, opcode: [0x90], registerInOpcode: true })
      },
    },
    {
      name: 'cmovcc',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({
          prefixes: sizePrefix(size),
          rexW: size === 8,
          opcode: [0x0f, 0x40 + b.random.below(16)],
          modrm: { size },
        })
      },
    },
    {
      name: 'setcc',
      build: b => b.encode({ opcode: [0x0f, 0x90 + b.random.below(16)], modrm: { size: 1 } }),
    },
    {
      name: 'cbw/cwd',
      build: b => {
        const size = b.random.pick(WIDE_SIZES)
        b.encode({ prefixes: sizePrefix(size), rexW: size === 8, opcode: [0x98 + b.random.below(2)] })
      },
    },
    {
      name: 'cmpxchg',
      build: b => {
        const size = b.random.pick(SIZES)
        sized(b, size, [0x0f, 0xb1], { lock: b.random.once(3) })
        // Equal every other time: take the accumulator from the window's constant zeros.
        if (b.random.once(2)) b.setRegister(0, 0n)
      },
    },
    { name: 'xadd', build: b => sized(b, b.random.pick(SIZES), [0x0f, 0xc1], { lock: b.random.once(3) }) },
    {
      name: 'cmpxchg8b/16b',
      build: b => {
        const wide = b.random.once(2)
        b.encode({
          prefixes: b.random.once(3) ? [0xf0] : [],
          rexW: wide,
          opcode: [0x0f, 0xc7],
          modrm: { reg: 1, size: wide ? 16 : 8, aligned: wide, form: b.random.once(10) ? 'register' : 'memory', rm: 6 },
        })
        if (b.random.once(2)) {
          b.setRegister(0, 0n)
          b.setRegister(2, 0n)
        }
      },
    },
    {
      name: 'flags',
      build: b => b.encode({ opcode: [b.random.pick([0xf5, 0xf8, 0xf9, 0xfc, 0xfd, 0x9e, 0x9f])] }),
    },
    {
      name: 'nop',
      build: b => {
        const opcode = b.random.pick([0x1f, 0x18, 0x1e, 0x0d])
        b.encode({
          prefixes: b.random.once(3) ? [0x66] : [],
          opcode: [0x0f, opcode],
          modrm: { form: opcode === 0x1f ? 'any' : 'memory', reg: opcode === 0x1f ? 0 : b.random.below(2) },
        })
      },
    },
    {
      name: 'xlat',
      build: b => {
        b.setRegister(3, BigInt(WINDOW_BASE + b.random.below(256)))
        b.encode({ opcode: [0xd7] })
      },
    },
  ]
}

/** An address in the int3 padding of this case's slot. */
const padding = (b: Builder): number => CODE_BASE + b.index * CODE_STRIDE + 44 + b.random.below(16)

function transfers(): Shape[] {
  const relative = (b: Builder, prefixes: number[], opcode: number[], size: number): void => {
    const displacement = padding(b) - (b.rip + prefixes.length + opcode.length + size)
    b.encode({ prefixes, noRex: true, opcode, immediate: size, immediateValue: BigInt(displacement) })
  }
  return [
    {
      name: 'jcc',
      build: b => {
        const condition = b.random.below(16)
        if (b.random.once(2)) relative(b, [], [0x70 + condition], 1)
        else relative(b, [], [0x0f, 0x80 + condition], 4)
      },
    },
    { name: 'jmp', build: b => (b.random.once(2) ? relative(b, [], [0xeb], 1) : relative(b, [], [0xe9], 4)) },
    { name: 'call', build: b => relative(b, [], [0xe8], 4) },
    {
      name: 'loop',
      build: b => {
        b.setRegister(1, b.random.once(2) ? BigInt(b.random.below(3)) : b.random.u64())
        relative(b, b.random.once(4) ? [0x67] : [], [0xe0 + b.random.below(4)], 1)
      },
    },
    {
      name: 'jmp/call r',
      build: b => {
        const rm = b.random.pick([0, 1, 2, 3, 5, 6, 7, 8, 9, 15])
        b.setRegister(rm, b.random.once(12) ? b.random.u64() : BigInt(padding(b)))
        b.encode({ opcode: [0xff], modrm: { reg: b.random.once(2) ? 2 : 4, form: 'register', rm } })
      },
    },
    {
      name: 'jmp/call m',
      build: b => {
        const target = b.encode({ opcode: [0xff], modrm: { reg: b.random.once(2) ? 2 : 4, form: 'memory' } })
        aim(b, target, BigInt(padding(b)))
      },
    },
    {
      name: 'ret',
      build: b => {
        const withCount = b.random.once(2)
        aim(b, b.register(4), BigInt(padding(b)))
        b.encode({
          opcode: [withCount ? 0xc2 : 0xc3],
          ...(withCount ? { immediate: 2, immediateValue: BigInt(b.random.below(64)) } : {}),
        })
      },
    },
  ]
}

/** Puts a value into the window at a linear address, when it is inside. */
function aim(b: Builder, address: bigint | undefined, value: bigint): void {
  if (address === undefined) return
  const offset = Number(address) - WINDOW_BASE
  if (offset >= 0 && offset <= 504) b.window(offset).setBigUint64(0, value, true)
}

function stack(): Shape[] {
  return [
    {
      name: 'push/pop r',
      build: b =>
        b.encode({
          prefixes: b.random.once(4) ? [0x66] : [],
          opcode: [b.random.once(2) ? 0x50 : 0x58],
          registerInOpcode: true,
        }),
    },
    {
      name: 'push imm',
      build: b => {
        const short = b.random.once(2)
        const prefix = b.random.once(4)
        b.encode({
          prefixes: prefix ? [0x66] : [],
          opcode: [short ? 0x6a : 0x68],
          immediate: short ? 1 : prefix ? 2 : 4,
        })
      },
    },
    {
      name: 'push m',
      build: b => b.encode({ prefixes: b.random.once(4) ? [0x66] : [], opcode: [0xff], modrm: { reg: 6 } }),
    },
    {
      name: 'pop m',
      build: b => b.encode({ prefixes: b.random.once(4) ? [0x66] : [], opcode: [0x8f], modrm: { reg: 0 } }),
    },
    {
      name: 'pushf',
      build: b => b.encode({ prefixes: b.random.once(4) ? [0x66] : [], opcode: [0x9c] }),
    },
    {
      name: 'popf',
      build: b => {
        // Not TF, NT, AC, nor ID: they act on what follows or on the host's kernel.
        aim(b, b.register(4), BigInt(b.random.u32() & 0x8cd7) | (b.random.u64() & 0xffff_0000_0000_0000n))
        b.encode({ prefixes: b.random.once(4) ? [0x66] : [], opcode: [0x9d] })
      },
    },
    {
      name: 'leave',
      build: b => {
        b.setRegister(5, BigInt(WINDOW_BASE + b.random.below(60) * 8))
        b.encode({ prefixes: b.random.once(6) ? [0x66] : [], opcode: [0xc9] })
      },
    },
    {
      name: 'enter',
      build: b => {
        b.setRegister(5, BigInt(WINDOW_BASE + 256 + b.random.below(30) * 8))
        b.setRegister(4, BigInt(WINDOW_BASE + 300 + b.random.below(20) * 8))
        b.encode({
          prefixes: b.random.once(6) ? [0x66] : [],
          opcode: [0xc8],
          immediate: 3,
          immediateValue: BigInt(b.random.below(64) | (b.random.below(5) << 16)),
        })
      },
    },
    {
      name: 'stack gone',
      build: b => {
        b.setRegister(4, b.random.once(2) ? 0x3000_0000n : BigInt(WINDOW_BASE - 0xf00 + b.random.below(8)))
        b.encode({ opcode: [b.random.pick([0x50, 0x9c, 0x58])], ...(b.random.once(2) ? {} : { rexW: false }) })
      },
    },
    {
      name: 'stack not canonical',
      build: b => {
        b.setRegister(4, b.random.pick([0x8000_0000_0000n, 0xffff_7fff_ffff_fff0n, 0x1234_5678_9abc_def0n]))
        const prefixes = b.random.once(3) ? [0x66] : []
        const form = b.random.pick([
          { opcode: [0x50], registerInOpcode: true },
          { opcode: [0x58], registerInOpcode: true },
          { opcode: [0x6a], immediate: 1 },
          { opcode: [0xff], modrm: { reg: 6 } },
          { opcode: [0x8f], modrm: { reg: 0 } },
          { opcode: [0x9c] },
          { opcode: [0x9d] },
          { opcode: [0x0f, 0xa0] },
        ] as const)
        b.encode({ prefixes, ...form })
      },
    },
  ]
}

function strings(): Shape[] {
  return [
    {
      name: 'string',
      build: b => {
        const size = b.random.pick(SIZES)
        const opcode = b.random.pick([0xa4, 0xa6, 0xaa, 0xac, 0xae]) | (size === 1 ? 0 : 1)
        if ((opcode & ~1) === 0xa6) b.tolerance = 'operands'
        const repeat = b.random.pick([[], [0xf3], [0xf3], [0xf2]])
        const count = b.random.below(12)
        b.setRegister(1, BigInt(repeat.length ? count : b.random.u32()))
        // Room on both sides for either direction; overlapping now and then.
        b.setRegister(6, BigInt(WINDOW_BASE + 120 + b.random.below(200)))
        b.setRegister(
          7,
          b.random.once(3)
            ? b.register(6) + BigInt(b.random.below(17)) - 8n
            : BigInt(WINDOW_BASE + 120 + b.random.below(200)),
        )
        if (b.random.once(20))
          b.setRegister(7, BigInt(WINDOW_BASE - 256 - 4096 + b.random.below(3) * size + 256 + 256 - 256))
        if (b.random.once(20)) b.setRegister(6, 0x3000_0000n)
        b.encode({
          prefixes: [...(b.random.once(12) ? [0x67] : []), ...repeat, ...sizePrefix(size)],
          rexW: size === 8,
          opcode: [opcode],
        })
      },
    },
  ]
}

/** Faults: privileged instructions at CPL 3, undefined opcodes, wrong LOCK. */
function faults(): Shape[] {
  const plain: readonly (readonly [string, readonly number[]])[] = [
    ['hlt', [0xf4]],
    ['cli', [0xfa]],
    ['sti', [0xfb]],
    ['ud2', [0x0f, 0x0b]],
    ['in', [0xe4, 0x10]],
    ['out', [0xee]],
    ['clts', [0x0f, 0x06]],
    ['invd', [0x0f, 0x08]],
    ['wbinvd', [0x0f, 0x09]],
    ['mov cr0', [0x0f, 0x20, 0xc0]],
    ['mov dr7', [0x0f, 0x23, 0xf8]],
    ['wrmsr', [0x0f, 0x30]],
    ['rdmsr', [0x0f, 0x32]],
    ['into', [0xce]],
    ['push es', [0x06]],
    ['aaa', [0x37]],
    ['pusha', [0x60]],
    ['aam', [0xd4, 0x0a]],
    ['les', [0xc4, 0x00]],
    ['ljmp', [0xea, 0, 0, 0, 0, 0, 0]],
    ['sysret', [0x48, 0x0f, 0x07]],
    ['82', [0x82, 0xc0, 0x01]],
    ['lock nop', [0xf0, 0x90]],
    ['lock mov', [0xf0, 0x89, 0x00]],
    ['lock lea', [0xf0, 0x8d, 0x00]],
    ['ud1', [0x0f, 0xb9, 0xc0]],
    ['ud0', [0x0f, 0xff, 0xc0]],
    ['mov cs', [0x8e, 0xc8]],
    ['fe /7', [0xfe, 0xf8]],
    ['ff /7', [0xff, 0xf8]],
    ['0f 04', [0x0f, 0x04]],
    ['0f 0a', [0x0f, 0x0a]],
    ['0f 24', [0x0f, 0x24, 0xc0]],
    ['0f a6', [0x0f, 0xa6]],
    ['rdpmc', [0x0f, 0x33]],
  ]
  return plain.map(([name, bytes]) => ({ name, rare: true, build: (b: Builder) => b.bytes(...bytes) }))
}

export const INTEGER_SHAPES: readonly Shape[] = [
  ...alu(),
  ...multiply(),
  ...shifts(),
  ...bits(),
  ...moves(),
  ...transfers(),
  ...stack(),
  ...strings(),
  ...faults(),
]
