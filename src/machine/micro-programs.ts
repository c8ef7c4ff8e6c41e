/** Machine code for tests and examples: 64-bit, loaded at 1 MiB, entered in ring 0 (`MachineOptions.program`). */

/** Joins bytes written as hexadecimal text or as numbers. */
export function assemble(...parts: (string | readonly number[] | Uint8Array)[]): Uint8Array {
  const bytes = parts.flatMap(part =>
    typeof part === 'string'
      ? (part.match(/[0-9a-f]{2}/g) ?? []).map(digits => Number.parseInt(digits, 16))
      : [...part],
  )
  return Uint8Array.from(bytes)
}

const text = (value: string): number[] => [...value].map(char => char.charCodeAt(0))

/** mov dx, 0x600; mov al, SLP_EN | 5 << 2; out dx, al; jmp to itself */
export const POWER_OFF = assemble('66 ba 00 06 b0 34 ee eb fe')

/**
 * Prints "Hello\n" on COM1 and powers off.
 *
 *   lea rsi, [rip + 21]; mov ecx, 6; mov dx, 0x3f8; cld; rep outsb; (power off); "Hello\n"
 */
export const HELLO = assemble('48 8d 35 15 00 00 00 b9 06 00 00 00 66 ba f8 03 fc f3 6e', POWER_OFF, text('Hello\n'))

/**
 * Reads COM1 by polling and writes every byte back; a full stop is echoed and powers off.
 *
 *   wait: mov dx, 0x3fd; in al, dx; test al, 1; jz wait; mov dx, 0x3f8; in al, dx; out dx, al; cmp al, '.'; jne wait
 */
export const ECHO = assemble('66 ba fd 03 ec a8 01 74 f7 66 ba f8 03 ec ee 3c 2e 75 ed', POWER_OFF)

/** mov al, 0xfe; out 0x64, al; jmp to itself */
export const REBOOT_I8042 = assemble('b0 fe e6 64 eb fe')

/** push 0; push 0; lidt [rsp]; mov eax, 0x1234; ud2: an invalid instruction with no way to report it */
export const TRIPLE_FAULT = assemble('6a 00 6a 00 0f 01 1c 24 b8 34 12 00 00 0f 0b')

/** loop: inc dword [0x1000]; jmp loop */
export const COUNT_FOR_EVER = assemble('ff 04 25 00 10 00 00 eb f7')
