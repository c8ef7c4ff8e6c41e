/** Machine code on both tiers at once: what compiled code must get right besides single instructions (test/oracle has those). */
import { describe, expect, it } from 'vitest'
import { loadProgram } from '../../src/machine/boot/program.ts'
import { assemble, POWER_OFF } from '../../src/machine/micro-programs.ts'
import { EXIT_STOPPED } from '../../wasm/cpu/state.ts'
import { Lockstep } from './lockstep.ts'
import { RecordingIo } from './micro-machine.ts'

/** Runs `program` until it powers off; the compiled side's counters. */
async function lockstep(program: Uint8Array, slice = 50): Promise<Record<string, number>> {
  const machine = await Lockstep.create({
    mib: 4,
    settings: { threshold: 3, batch: 1, patience: 0, everyEdge: true },
    load: memory => loadProgram(memory, program),
    open: async () => new RecordingIo(),
  })
  try {
    for (let steps = 0; ; steps++) {
      const result = machine.step(slice)
      if (typeof result !== 'number') expect.fail(`${result.what} since ${result.since}\n${result.at}`)
      if (result === EXIT_STOPPED) break
      if (steps > 100_000) expect.fail('the program does not end')
    }
    expect(machine.compareMemory()).toBeUndefined()
    return machine.sides[1].vcpu.counters()
  } finally {
    machine.close()
  }
}

describe('both tiers in lockstep', () => {
  it('a loop over memory with flags that cross blocks', async () => {
    const counters = await lockstep(
      assemble(
        'b9 d0 07 00 00', // mov ecx, 2000
        '48 01 c8 48 31 c3', // loop: add rax, rcx; xor rbx, rax
        '48 89 1c 25 00 30 00 00', // mov [0x3000], rbx
        '48 8b 14 25 00 30 00 00', // mov rdx, [0x3000]
        '48 c1 c2 05 48 0f af d0', // rol rdx, 5; imul rdx, rax
        '48 11 d3 72 03 48 ff c6', // adc rbx, rdx; jc +3; inc rsi
        '77 03 48 ff c7', // ja +3 (flags from before); inc rdi
        'ff c9 75 d1', // dec ecx; jne loop
        POWER_OFF,
      ),
    )
    expect(counters.compiledRegions).toBeGreaterThan(0)
    expect(counters.compiledEntries).toBeGreaterThan(10)
  })

  it('calls, returns and pushes', async () => {
    const counters = await lockstep(
      assemble(
        'bc 00 00 08 00 bb 20 03 00 00', // mov esp, 0x80000; mov ebx, 800
        'e8 06 00 00 00 ff cb 75 f7', // loop: call f; dec ebx; jne loop
        'eb 0e', // jmp out
        '53 50 6a 7b 59 48 01 c8 5a 01 d0 5b c3', // f: push rbx, rax, 123; pop rcx; add rax, rcx; pop rdx; add eax, edx; pop rbx; ret
        '90', // out
        POWER_OFF,
      ),
    )
    expect(counters.compiledEntries).toBeGreaterThan(100)
  })

  it('code that patches the loop it is in', async () => {
    const counters = await lockstep(
      assemble(
        'b9 c8 00 00 00 31 db', // mov ecx, 200; xor ebx, ebx
        '88 0d 01 00 00 00', // loop: mov [rip+1], cl: the immediate of the next mov
        'b0 00 0f b6 c0 01 c3', // mov al, (cl); movzx eax, al; add ebx, eax
        'ff c9 75 ef', // dec ecx; jne loop
        '89 d8 e7 80', // mov eax, ebx; out 0x80, eax
        POWER_OFF,
      ),
    )
    expect(counters.codeWrites).toBeGreaterThan(100)
  })
})
