/**
 * A guest one instruction at a time, on the software CPU. It reads a word twice; in between, the page that the word is in is changed
 * for another one in its page tables, from here.
 *
 *   npm run build && npx tsx examples/single-step.ts
 */
import { Machine } from 'vitrine'

const hex = (value: bigint | number): string => `0x${value.toString(16)}`
const names = 'rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15'.split(' ')

// 64-bit machine code, loaded at 1 MiB and entered in ring 0.
const program = Uint8Array.of(
  ...[0xb8, 0x00, 0x00, 0x20, 0x00], // mov eax, 0x200000
  ...[0x8b, 0x18, 0x90], //             mov ebx, [rax]; nop
  ...[0x8b, 0x18, 0x90], //             mov ebx, [rax]; nop
  ...[0x66, 0xba, 0x00, 0x06, 0xb0, 0x34, 0xee, 0xeb, 0xfe], // power off
)
const machine = await Machine.create({ program, memoryMib: 8, accel: 'soft' })
machine.memory.writeU32(0x20_0000, 0x1111)
machine.memory.writeU32(0x40_0000, 0x2222)
const cpu = machine.cpu(0)

async function step(): Promise<void> {
  const before = (await cpu.state()).registers
  await cpu.step()
  const after = (await cpu.state()).registers
  const changed = names.flatMap((name, i) =>
    before.general[i] === after.general[i] ? [] : [`${name} = ${hex(after.general[i]!)}`],
  )
  console.log(`${hex(before.rip)}:  ${changed.join(' ')}`)
}

for (let i = 0; i < 3; i++) await step()
const { entries, physical } = await cpu.translate(0x20_0000n)
for (const { level, address, value } of entries)
  console.log(`level ${level}: entry at ${hex(address)} is ${hex(value)}`)
console.log(`so 0x200000 is at ${hex(physical!)}`)
const last = entries.at(-1)!
machine.memory.writeU64(last.address, (last.value & 0xfffn) | 0x40_0000n)
await machine.memoryChanged()
for (let i = 0; i < 2; i++) await step()
machine.start()
console.log(`ended by ${(await machine.ended()).reason}`)
await machine.close()
