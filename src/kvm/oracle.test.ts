/** The hardware oracle: instructions whose results the manuals give (SDM volume 2). */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { HardwareOracle, initialFxsave, ORACLE_CODE, ORACLE_DATA, ORACLE_STACK } from './oracle.ts'
import { kvmUnusable } from './testing.ts'

const CF = 1n
const ZF = 0x40n
const XMM0 = 160

describe.skipIf(kvmUnusable())('the hardware oracle (needs /dev/kvm)', () => {
  let oracle: HardwareOracle
  beforeAll(() => {
    oracle = HardwareOracle.open()
  })
  afterAll(() => oracle?.close())

  const run = (code: readonly number[], input: Omit<Parameters<HardwareOracle['run']>[0], 'code'> = {}) =>
    oracle.run({ code: Uint8Array.from(code), ...input })

  it('gives registers and flags after the last instruction', () => {
    // add rax, rbx
    const result = run([0x48, 0x01, 0xd8], { general: { rax: 0xffff_ffff_ffff_ffffn, rbx: 1n, r15: 15n } })
    expect(result.fault).toBeUndefined()
    expect(result.general[0]).toBe(0n)
    expect(result.general[15]).toBe(15n)
    expect(result.general[4]).toBe(BigInt(ORACLE_STACK))
    expect(result.rflags & (CF | ZF)).toBe(CF | ZF)
    expect(result.rip).toBe(BigInt(ORACLE_CODE + 3))
  })

  it('reads and writes memory', () => {
    // mov rax, [rbx]; bswap rax; mov [rbx+8], rax; push rax
    const data = Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8)
    const result = run([0x48, 0x8b, 0x03, 0x48, 0x0f, 0xc8, 0x48, 0x89, 0x43, 0x08, 0x50], {
      general: { rbx: BigInt(ORACLE_DATA) },
      memory: [{ address: ORACLE_DATA, bytes: data }],
    })
    expect(result.fault).toBeUndefined()
    expect([...oracle.guest.slice(ORACLE_DATA + 8, 8)]).toEqual([...data].reverse())
    expect(result.general[4]).toBe(BigInt(ORACLE_STACK - 8))
    expect(oracle.guest.readU64(ORACLE_STACK - 8)).toBe(0x0102030405060708n)
  })

  it('carries SSE and x87 registers in and out', () => {
    const fxsave = initialFxsave()
    new Float32Array(fxsave.buffer, XMM0, 4).set([1, 2, 3, 4])
    new Float32Array(fxsave.buffer, XMM0 + 16, 4).set([10, 20, 30, 40])
    // addps xmm0, xmm1; fldpi
    const result = run([0x0f, 0x58, 0xc1, 0xd9, 0xeb], { fxsave })
    expect(result.fault).toBeUndefined()
    expect([...new Float32Array(result.fxsave.buffer, XMM0, 4)]).toEqual([11, 22, 33, 44])
    // ST0 is pi: 4000 C90FDAA22168C235 (SDM volume 1, 8.3.8).
    expect(Buffer.from(result.fxsave.subarray(32, 42)).toString('hex')).toBe('35c26821a2da0fc90040')
  })

  it('names faults: vector, error code and address', () => {
    expect(run([0x0f, 0x0b])).toMatchObject({ fault: { vector: 6, errorCode: undefined }, rip: BigInt(ORACLE_CODE) })
    expect(run([0xf7, 0xf3]).fault).toMatchObject({ vector: 0 }) // div ebx
    expect(run([0xf4]).fault).toMatchObject({ vector: 13, errorCode: 0 }) // hlt
    expect(run([0xcc, 0x90])).toMatchObject({ fault: { vector: 3 }, rip: BigInt(ORACLE_CODE + 1) })
    // mov rax, [rax]: not mapped, then the supervisor's page, then not canonical.
    const load = [0x48, 0x8b, 0x00]
    expect(run(load, { general: { rax: 0x1234567n } }).fault).toEqual({ vector: 14, errorCode: 4, cr2: 0x1234567n })
    expect(run(load, { general: { rax: 0x2000n } }).fault).toEqual({ vector: 14, errorCode: 5, cr2: 0x2000n })
    expect(run(load, { general: { rax: 1n << 63n } }).fault).toMatchObject({ vector: 13, errorCode: 0 })
    // A set trap flag stops after one instruction.
    expect(run([0x90, 0x90], { rflags: 0x102n })).toMatchObject({ fault: { vector: 1 }, rip: BigInt(ORACLE_CODE + 1) })
  })

  it('runs at native speed', () => {
    // dec rcx; jnz: one instruction at a time, this would take minutes and the test would time out.
    const result = run([0x48, 0xff, 0xc9, 0x75, 0xfb], { general: { rcx: 200_000_000n } })
    expect(result.fault).toBeUndefined()
    expect(result.general[1]).toBe(0n)
  })
})
