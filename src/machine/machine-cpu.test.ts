/** A vCPU that stands still: looked into, changed and stepped, with a guest of a few instructions. */
import { afterEach, describe, expect, it } from 'vitest'
import { Machine } from './machine.ts'
import { assemble, COUNT_FOR_EVER, POWER_OFF, TRIPLE_FAULT } from './micro-programs.ts'
import { walkPageTables } from './page-tables.ts'

const CODE = 0x10_0000n
let machine: Machine | undefined

async function make(program: Uint8Array): Promise<Machine> {
  machine = await Machine.create({ program, memoryMib: 8, accel: 'soft' })
  return machine
}

afterEach(async () => {
  await machine?.close()
  machine = undefined
})

describe('a vCPU that stands still', () => {
  it('steps, is changed, and goes on from there', async () => {
    // mov eax, 5; add eax, 2; out 0x80, al; power off
    const cpu = (await make(assemble('b8 05 00 00 00 83 c0 02 e6 80', POWER_OFF))).cpu(0)
    expect(await cpu.step()).toEqual({ reason: 'stepped', retired: 1, waits: false })
    const { registers } = await cpu.state()
    expect([registers.rip, registers.general[0]]).toEqual([CODE + 5n, 5n])
    await cpu.change({ registers: { general: registers.general.with(0, 40n) } })
    await cpu.step()
    expect((await cpu.state()).registers.general[0]).toBe(42n)
    machine!.start()
    expect(await machine!.ended()).toEqual({ reason: 'power-off' })
  })

  it('waits in HLT, and a step that ends the guest ends the machine', async () => {
    const first = await make(assemble('fb f4', POWER_OFF)) // sti; hlt
    expect(await first.cpu(0).step(10)).toMatchObject({ reason: 'stepped', waits: true })
    await first.close()
    const second = await make(TRIPLE_FAULT)
    expect(await second.cpu(0).step(100)).toMatchObject({ reason: 'shutdown' })
    expect(await second.ended()).toMatchObject({ reason: 'triple-fault', cpu: 0 })
    await expect(second.cpu(0).step()).rejects.toThrow('cannot be stepped')
  })

  it('code written by the debugger is what runs', async () => {
    const made = await make(assemble('90 90 90 90 90', POWER_OFF))
    await made.cpu(0).step()
    await made.cpu(0).write(CODE + 1n, assemble('6a 07 58')) // push 7; pop rax
    expect(await made.cpu(0).read(CODE, 5)).toEqual(assemble('90 6a 07 58 90'))
    await made.cpu(0).step(2)
    expect((await made.cpu(0).state()).registers.general[0]).toBe(7n)
  })

  it('page tables: large and small pages, rights of all levels, holes', async () => {
    const made = await make(assemble('90'))
    const { system } = await made.cpu(0).state()
    const [pml4, pdpt, pd, pt] = [0x60_0000, 0x60_1000, 0x60_2000, 0x60_3000]
    made.memory.writeU64(pml4 + 8 * 0x123, BigInt(pdpt) | 7n)
    made.memory.writeU64(pdpt + 8 * 5, BigInt(pd) | 7n)
    made.memory.writeU64(pd + 8 * 6, BigInt(pt) | 5n) // read-only
    made.memory.writeU64(pt + 8 * 7, 0x8000_0000_0000_0000n | 0x12_3000n | 0x63n) // supervisor, no execution
    made.memory.writeU64(pdpt + 8 * 6, 0xc000_0000n | 0x87n) // 1 GiB
    const at = (pdpte: bigint, pde: bigint, pte: bigint): bigint =>
      BigInt.asUintN(64, BigInt.asIntN(48, (0x123n << 39n) | (pdpte << 30n) | (pde << 21n) | (pte << 12n)) | 0xabcn)
    const walk = (linear: bigint) => walkPageTables(made.memory, { ...system, cr3: BigInt(pml4) }, linear)
    expect(walk(at(5n, 6n, 7n))).toMatchObject({
      ...{ physical: 0x12_3abc, pageSize: 4096, writable: false, user: false, executable: false },
      entries: [{ level: 4 }, { level: 3 }, { level: 2 }, { level: 1, accessed: true, dirty: true, noExecute: true }],
    })
    expect(walk(at(6n, 1n, 2n))).toMatchObject({ physical: 0xc020_2abc, pageSize: 2 ** 30, writable: true, user: true })
    expect(walk(at(5n, 6n, 8n))).toMatchObject({ physical: undefined, entries: { length: 4 } })
    expect(walk(at(9n, 0n, 0n))).toMatchObject({ physical: undefined, entries: { length: 2 } })
    // Tables outside RAM are empty ones.
    made.memory.writeU64(pdpt + 8 * 9, 0xff_ffff_f000n | 7n)
    expect(walk(at(9n, 0n, 0n))).toMatchObject({ physical: undefined, entries: { length: 3 } })
    const plain = walkPageTables(made.memory, { ...system, cr0: 1n }, 0x1234n)
    expect(plain).toMatchObject({ physical: 0x1234, entries: [] })
  })

  it('a machine that runs, a vCPU that is not there and senseless counts are refused', async () => {
    const made = await make(COUNT_FOR_EVER)
    expect(() => made.cpu(1)).toThrow('there is no vCPU 1: the machine has 1')
    await expect(made.cpu(0).step(0)).rejects.toThrow('0 steps are not possible')
    await expect(made.cpu(0).change({ registers: { general: [1n] } })).rejects.toThrow('16 general registers')
    await expect(made.cpu(0).write(1n << 40n, Uint8Array.of(1))).rejects.toThrow('not all of that is mapped to RAM')
    made.start()
    await expect(made.cpu(0).state()).rejects.toThrow('a machine that is running cannot be looked into')
    await made.pause()
    const before = made.memory.readU32(0x1000)
    await made.cpu(0).step(20)
    expect(made.memory.readU32(0x1000)).toBe(before + 10)
    await made.resume()
  })
})
