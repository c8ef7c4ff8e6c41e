import { describe, expect, it } from 'vitest'
import { buildModule, Code, I32, I64, MEM, OP } from './wasm-emitter.ts'

const TYPE = { params: [I64, I32], results: [I64] }
const ADD = { name: 'add', type: { params: [I64, I64], results: [I64] } }

/** The function (i64, i32) -> i64 with a local of each type that `emit` writes. */
function build(emit: (code: Code) => void): (a: bigint, b: number) => bigint {
  const code = new Code()
  emit(code)
  const memory = new WebAssembly.Memory({ initial: 16, maximum: 16, shared: true })
  new DataView(memory.buffer).setBigUint64(0x1_2345, 0x8877_6655_4433_2211n, true)
  const bytes = buildModule(TYPE, [ADD], [{ locals: [I64, I32], code: code.bytes() }])
  const add = (a: bigint, b: bigint): bigint => BigInt.asIntN(64, a + b)
  const instance = new WebAssembly.Instance(new WebAssembly.Module(bytes), { env: { memory, add } })
  return instance.exports['0'] as (a: bigint, b: number) => bigint
}

describe('the WebAssembly that is emitted', () => {
  it('has constants of every length', () => {
    const values = [0n, 63n, 64n, -64n, -65n, 8191n, 8192n, -8193n, 0x7fff_ffffn, 0x8000_0000n, -0x8000_0001n]
    for (const value of [...values, 0xffff_ffffn, 0x1234_5678_9abc_def0n, -(1n << 63n), (1n << 63n) - 1n]) {
      const high = Number(BigInt.asIntN(32, value >> 32n))
      expect(build(code => code.i64Halves(Number(BigInt.asIntN(32, value)), high))(0n, 0)).toBe(value)
    }
    for (const value of [0, 63, 64, -65, 0x7fff_ffff, -0x8000_0000]) {
      expect(build(code => code.i64(value))(0n, 0)).toBe(BigInt(value))
      const wrapped = build(code => {
        code.i32(value)
        code.op(OP.i64_extend_i32_s)
      })
      expect(wrapped(0n, 0)).toBe(BigInt(value))
    }
  })

  it('loads with large offsets, calls imports', () => {
    const load = build(code => {
      code.i32(0)
      code.memory(MEM.i64_load16_u, 0x1_2345)
      code.get(0)
      code.call(0)
    })
    expect(load(1n, 0)).toBe(0x2212n)
  })

  it('branches: a jump table into nested blocks, and round a loop', () => {
    const table = build(code => {
      const labels = [code.block(), code.block(), code.block()]
      code.get(1)
      code.brTable([labels[2]!, labels[1]!, labels[0]!])
      code.end()
      code.i64(100)
      code.op(OP.return)
      code.end()
      code.i64(101)
      code.op(OP.return)
      code.end()
      code.i64(102)
    })
    expect([0, 1, 2, 9].map(index => table(0n, index))).toEqual([100n, 101n, 102n, 102n])
    // a * b by adding
    const product = build(code => {
      const out = code.block()
      const again = code.loop()
      code.get(1)
      code.op(OP.i32_eqz)
      code.brIf(out)
      code.get(2)
      code.get(0)
      code.op(OP.i64_add)
      code.set(2)
      code.get(1)
      code.i32(1)
      code.op(OP.i32_sub)
      code.set(1)
      code.br(again)
      code.end()
      code.end()
      code.get(2)
    })
    expect(product(7n, 6)).toBe(42n)
  })

  it('says of an `if` which way it goes as a rule, in the section that engines look for', () => {
    const code = new Code()
    code.get(1)
    const first = code.length
    code.ifHinted(false)
    code.end()
    code.get(1)
    const second = code.length
    code.ifHinted(true)
    code.end()
    code.get(0)
    const plain = { locals: [], code: new Uint8Array([0x20, 0]) }
    const hinted = { locals: [I64, I32], code: code.bytes(), hints: code.hints }
    const bytes = buildModule(TYPE, [ADD], [plain, hinted])
    expect(WebAssembly.validate(bytes)).toBe(true)
    const name = 'metadata.code.branch_hint'
    const start = Buffer.from(bytes).indexOf(name) + name.length
    // One function, number 2 after the import and the plain one; two hints of a byte each, their places counted from its locals (a count and twice two bytes).
    const expected = [1, 2, 2, 5 + first, 1, 0, 5 + second, 1, 1]
    expect([...bytes.subarray(start, start + expected.length)]).toEqual(expected)
    expect(Buffer.from(buildModule(TYPE, [], [plain])).includes(name)).toBe(false)
  })

  it('grows beyond its first buffer', () => {
    const long = build(code => {
      code.i64(0)
      for (let count = 0; count < 5000; count++) {
        code.i64(count)
        code.op(OP.i64_add)
      }
    })
    expect(long(0n, 0)).toBe(BigInt((5000 * 4999) / 2))
  })
})
