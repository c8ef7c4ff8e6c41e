/** Every x87 instruction, D8 to DF, and its state in memory. */
import type { Builder } from './builder.ts'
import type { Shape } from './shape.ts'

/** Sizes of the memory operands, by group (D8 to DF) and ModRM.reg; 0 is undefined. */
const SIZES: readonly (readonly number[])[] = [
  [4, 4, 4, 4, 4, 4, 4, 4],
  [4, 1, 4, 4, 28, 2, 28, 2],
  [4, 4, 4, 4, 4, 4, 4, 4],
  [4, 4, 4, 4, 1, 10, 1, 10],
  [8, 8, 8, 8, 8, 8, 8, 8],
  [8, 8, 8, 8, 108, 1, 108, 2],
  [2, 2, 2, 2, 2, 2, 2, 2],
  [2, 2, 2, 2, 10, 8, 10, 8],
]

/** D9 Fx that are accurate to a unit in the last place only: F2XM1 FYL2X FPTAN FPATAN FYL2XP1 FSINCOS FSIN FCOS. */
const TRANSCENDENTAL = new Set([0xf0, 0xf1, 0xf2, 0xf3, 0xf9, 0xfb, 0xfe, 0xff])

function memory(): Shape[] {
  const shapes: Shape[] = []
  for (let group = 0; group < 8; group++)
    for (let reg = 0; reg < 8; reg++)
      shapes.push({
        name: `x87 ${(0xd8 + group).toString(16)} /${reg}`,
        build: b => {
          b.randomX87()
          b.randomVectorsInWindow()
          const prefix = (SIZES[group]![reg]! >= 28 && b.random.once(3)) || b.random.once(30)
          const address = b.encode({
            prefixes: prefix ? [0x66] : [],
            opcode: [0xd8 + group],
            modrm: { reg, form: 'memory', size: SIZES[group]![reg]! },
          })
          if (SIZES[group]![reg]! >= 28) b.tolerance = 'area'
          if (group === 7 && reg === 4) packedDecimal(b, address)
        },
      })
  return shapes
}

/** FBLD's result is undefined for anything but decimal digits. */
function packedDecimal(b: Builder, address: bigint | undefined): void {
  const view = b.windowAt(address, 10)
  if (!view) return
  for (let i = 0; i < 9; i++) view.setUint8(i, b.random.below(10) * 16 + b.random.below(10))
  view.setUint8(9, b.random.once(2) ? 0x80 : 0)
}

function registers(): Shape[] {
  const shapes: Shape[] = []
  for (let group = 0; group < 8; group++)
    for (let reg = 0; reg < 8; reg++)
      shapes.push({
        name: `x87 ${(0xd8 + group).toString(16)} ${(0xc0 + reg * 8).toString(16)}+i`,
        build: b => {
          b.randomX87()
          const modrm = 0xc0 + reg * 8 + b.random.below(8)
          if (group === 1 && TRANSCENDENTAL.has(modrm)) transcendental(b, modrm)
          b.bytes(0xd8 + group, modrm)
        },
      })
  shapes.push({
    name: 'fwait',
    build: b => {
      b.randomX87()
      b.bytes(0x9b)
    },
  })
  return shapes
}

/** Arguments inside the domain, where results are defined. */
function transcendental(b: Builder, modrm: number): void {
  b.tolerance = 'x87'
  const { random } = b
  // A valid ST0 and ST1, all exceptions masked, room to push, round to nearest.
  b.setX87(0, 0x37f)
  b.setX87(2, random.below(8) << 11)
  b.setX87(4, 0xff)
  const top = b.x87Top
  b.setX87(4, 0xff & ~(1 << ((top + 7) & 7)))
  const wild = random.once(4)
  if (!wild) {
    const small = modrm === 0xf0 || modrm === 0xf9
    const exponent = small ? 16383 - 2 - random.below(20) : 16383 - 10 + random.below(30)
    const negative = modrm !== 0xf1 && random.once(2)
    b.setExtended(0, random.u64() | (1n << 63n), exponent | (negative ? 0x8000 : 0))
    b.setExtended(1, random.u64() | (1n << 63n), (16383 - 8 + random.below(16)) | (random.once(2) ? 0x8000 : 0))
  } else if (modrm === 0xf0 || modrm === 0xf9) {
    // Outside their domain the results are undefined: zeros, infinities and NaNs only.
    b.setExtended(0, random.once(2) ? 0n : 1n << 63n, random.once(2) ? 0 : 0)
  }
}

/** FXSAVE and FXRSTOR of everything, and MXCSR. */
function state(): Shape[] {
  return [
    {
      name: 'fxsave',
      build: b => {
        b.tolerance = 'fxsave'
        b.randomX87()
        b.randomVectors('integer')
        b.encode({
          rexW: b.random.once(2),
          opcode: [0x0f, 0xae],
          modrm: { reg: 0, form: 'memory', size: 512, aligned: true },
        })
      },
    },
    {
      name: 'fxrstor',
      build: b => {
        b.tolerance = 'fxsave'
        b.randomX87()
        b.setFxImage()
        b.encode({
          rexW: b.random.once(2),
          opcode: [0x0f, 0xae],
          modrm: { reg: 1, form: 'memory', size: 512, aligned: true },
        })
      },
    },
    {
      name: 'ldmxcsr/stmxcsr',
      build: b => {
        b.randomVectors('integer')
        const address = b.encode({
          opcode: [0x0f, 0xae],
          modrm: { reg: 2 + b.random.below(2), form: 'memory', size: 4 },
        })
        b.windowAt(address, 4)?.setUint32(0, b.random.once(8) ? b.random.u32() : b.random.u32() & 0xffff, true)
      },
    },
  ]
}

export const X87_SHAPES: readonly Shape[] = [...memory(), ...registers(), ...state()]
