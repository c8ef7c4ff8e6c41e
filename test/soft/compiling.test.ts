/** What is compiled, and when: by counting regions of the software CPU's second tier. */
import { expect, it } from 'vitest'
import { assemble, POWER_OFF } from '../../src/machine/micro-programs.ts'
import type { TierSettings } from '../../src/soft/jit/tier.ts'
import { microMachine } from './micro-machine.ts'

/** All of a loop's blocks are in the first batch. */
const SETTINGS: TierSettings = { threshold: 100, batch: 100, patience: 3, everyEdge: false, background: false }

/** Six blocks that follow each other by direct branches, all hot in the same turns. */
const LOOP = assemble(
  'b9 a0 86 01 00', // mov ecx, 100000
  '48 01 c8 72 03', // loop: add rax, rcx; jc +3
  '48 ff c6', // inc rsi
  'f6 c1 01 74 03', // test cl, 1; jz +3
  '48 ff c7', // inc rdi
  'f6 c1 02 74 03', // test cl, 2; jz +3
  '48 ff c3', // inc rbx
  'ff c9 75 e4', // dec ecx; jne loop
  POWER_OFF,
)

it('a loop is compiled once, not once for each of its blocks', () => {
  const { vcpu, vm, io } = microMachine(LOOP, {}, 4, SETTINGS)
  while (vcpu.counters().compiledRegions === 0) vcpu.slice(io, 1000)
  for (let i = 0; i < 200; i++) vcpu.slice(io, 1000)
  const { compiledRegions, compiledInstructions, instructions } = vcpu.counters()
  expect(compiledRegions).toBe(1)
  expect(compiledInstructions! / instructions!).toBeGreaterThan(0.9)
  vcpu.close()
  vm.close()
})

it('a block within a compiled loop is compiled when it is hot on its own, too', () => {
  // After the loop, its last part is jumped into again and again: a way in that the region around the loop does not have.
  const inside = assemble(
    'b9 40 42 0f 00', // mov ecx, 1000000
    '48 ff c0 f6 c1 01 74 03', // loop: inc rax; test cl, 1; jz +3
    '48 ff c7', // inc rdi
    '48 ff c6', // middle: inc rsi
    'ff c9 75 ee', // dec ecx; jne loop
    '41 ff c0', // inc r8d
    '41 81 f8 40 42 0f 00 73 07', // cmp r8d, 1000000; jae +7
    'b9 01 00 00 00 eb e6', // mov ecx, 1; jmp middle
    POWER_OFF,
  )
  const { vcpu, vm, io } = microMachine(inside, {}, 4, SETTINGS)
  const before = vcpu.readRegisters().general
  expect(vcpu.run(io).reason).toBe('stopped')
  const after = vcpu.readRegisters().general
  expect([6, 7, 8].map(register => after[register]! - before[register]!)).toEqual([
    2_000_000n - 1n,
    500_000n,
    1_000_000n,
  ])
  expect(vcpu.counters().compiledInstructions! / vcpu.counters().instructions!).toBeGreaterThan(0.9)
  vcpu.close()
  vm.close()
})

it('a loop of calls and returns across pages ends with its slice', () => {
  // mov esp, 0x90000; call 0x101000; jmp to the call
  const program = assemble('bc 00 00 09 00 e8 f6 0f 00 00 eb f9')
  const { memory, vcpu, vm, io } = microMachine(program, {}, 4, SETTINGS)
  memory.write(0x10_1000, assemble('ff c0 c3')) // inc eax; ret
  for (let i = 0; i < 20; i++) vcpu.slice(io, 1000)
  const before = vcpu.counters()
  for (let i = 0; i < 100; i++) vcpu.slice(io, 1000)
  const after = vcpu.counters()
  const entries = after.compiledEntries! - before.compiledEntries!
  expect(after.instructions! - before.instructions!).toBeLessThan(101_000)
  expect(after.compiledInstructions! - before.compiledInstructions!).toBeGreaterThan(99_000)
  // In at the start of a slice, out at its end.
  expect(entries).toBeLessThanOrEqual(200)
  vcpu.close()
  vm.close()
})
