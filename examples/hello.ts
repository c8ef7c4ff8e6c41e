/**
 * A guest of two dozen bytes: it writes "Hi" to the serial port and powers the machine off.
 *
 *   npm run build && npx tsx examples/hello.ts
 */
import { Machine } from 'vitrine'

// 64-bit machine code, loaded at 1 MiB and entered in ring 0.
const program = Uint8Array.of(
  ...[0x66, 0xba, 0xf8, 0x03], //   mov dx, 0x3f8      the serial port
  ...[0xb0, 0x48, 0xee], //         mov al, 'H'; out dx, al
  ...[0xb0, 0x69, 0xee], //         mov al, 'i'; out dx, al
  ...[0xb0, 0x0a, 0xee], //         mov al, '\n'; out dx, al
  ...[0x66, 0xba, 0x00, 0x06], //   mov dx, 0x600      ACPI's sleep control register
  ...[0xb0, 0x34, 0xee], //         mov al, S5; out dx, al
  ...[0xeb, 0xfe], //               jmp to itself, until the machine is off
)

// Any /dev/kvm can run this; without one, the software CPU.
const accel = process.argv[2] === 'soft' ? 'soft' : 'kvm'
const machine = await Machine.create({ program, memoryMib: 4, accel })
machine.on('console', data => process.stdout.write(data))
machine.start()
const { reason } = await machine.ended()
await machine.close()
console.log(`ended by ${reason}`)
