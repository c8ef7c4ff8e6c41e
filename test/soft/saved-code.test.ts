/** What a CPU has decoded, taken from one machine and mapped into another with the same memory. */
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { assemble, POWER_OFF } from '../../src/machine/micro-programs.ts'
import { RAM_OFFSET } from '../../src/memory/layout.ts'
import { CodeWatch } from '../../src/soft/code-watch.ts'
import { EAGER } from '../../src/soft/jit/tier.ts'
import { type MicroMachine, microMachine } from './micro-machine.ts'

const CODE = 0x10_0000
const folder = mkdtempSync(join(tmpdir(), 'vitrine-code-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** Writes 1 + 2 + ... + 1000 to port 0x80, again and again. */
const SUM = assemble(
  'b9 e8 03 00 00 31 db', // mov ecx, 1000; xor ebx, ebx
  '01 cb ff c9 75 fa', // add ebx, ecx; dec ecx; jne
  '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
  'eb ed', // again
)

function run(machine: MicroMachine, slices: number): void {
  for (let slice = 0; slice < slices; slice++) machine.vcpu.slice(machine.io, 5000)
}

/** Another machine with the memory and the state of `from`, and what it had decoded. */
function clone(from: MicroMachine, saved: Uint8Array, mib = 4): MicroMachine {
  const to = microMachine(SUM, {}, mib)
  to.memory.bytes.set(from.memory.bytes.subarray(RAM_OFFSET, RAM_OFFSET + from.memory.size), RAM_OFFSET)
  to.vcpu.restore(from.vcpu.save())
  const path = join(folder, 'code')
  writeFileSync(path, saved)
  const fd = openSync(path, 'r')
  to.vm.adoptCode(fd, saved.length)
  closeSync(fd)
  return to
}

describe('saved code', () => {
  it.each([undefined, EAGER])('is used again, without decoding, and gives the same', settings => {
    const first = microMachine(SUM, {}, 4, settings)
    run(first, 4)
    const saved = first.vm.saveCode()!
    const second = clone(first, saved)
    run(first, 4)
    run(second, 4)
    expect(second.io.written.length).toBeGreaterThan(0)
    expect(second.io.written.every(({ port, value }) => port === 0x80 && value === 500_500)).toBe(true)
    expect(second.vcpu.counters().blocksDecoded).toBe(0)
    expect(second.vcpu.readRegisters()).toEqual(first.vcpu.readRegisters())
    // What runs in one does not show in the other, or in what was saved.
    expect(Buffer.compare(clone(first, saved).vm.saveCode()!, saved)).toBe(0)
  })

  it('is dropped where the guest, or a device, writes to that code later', () => {
    const first = microMachine(SUM)
    run(first, 4)
    const second = clone(first, first.vm.saveCode()!)
    // The 1000 becomes 10, as a device would do it.
    second.memory.write(CODE + 1, Uint8Array.of(10, 0))
    new CodeWatch(second.memory).note(RAM_OFFSET + CODE + 1, 2)
    run(second, 4)
    expect(second.vcpu.counters().blocksDecoded).toBeGreaterThan(0)
    expect(second.io.written.at(-1)!.value).toBe(55)
    run(first, 4)
    expect(first.io.written.at(-1)!.value).toBe(500_500)
  })

  it('is not taken while a vCPU has not dropped what a device overwrote', () => {
    const machine = microMachine(SUM)
    run(machine, 4)
    new CodeWatch(machine.memory).note(RAM_OFFSET + CODE, 1)
    expect(machine.vm.saveCode()).toBeUndefined()
    // Which it does when its state is saved, as in every snapshot.
    machine.vcpu.save()
    const second = clone(machine, machine.vm.saveCode()!)
    run(second, 4)
    expect(second.vcpu.counters().blocksDecoded).toBeGreaterThan(0)
    expect(second.io.written.at(-1)!.value).toBe(500_500)
  })

  it('is not taken where nothing ran', () => expect(microMachine(POWER_OFF).vm.saveCode()).toBeUndefined())

  it('is refused when it is of another machine, damaged or cut short: the guest runs all the same', () => {
    const first = microMachine(SUM)
    run(first, 4)
    const saved = first.vm.saveCode()!
    const head = (index: number, value: number): Uint8Array => {
      const copy = saved.slice()
      new DataView(copy.buffer).setUint32(index * 4, value, true)
      return copy
    }
    const bad = [head(0, 1), head(1, 5), head(2, 0), head(3, 0xffff_ffff), head(3, 0), saved.subarray(0, 4096)]
    for (const bytes of [...bad, saved.subarray(0, 100), new Uint8Array(0)]) {
      const second = clone(first, bytes)
      run(second, 4)
      expect(second.io.written.at(-1)!.value).toBe(500_500)
      expect(second.vcpu.counters().blocksDecoded).toBeGreaterThan(0)
    }
    const larger = clone(first, saved, 8)
    run(larger, 4)
    expect(larger.vcpu.counters().blocksDecoded).toBeGreaterThan(0)
  })
})
