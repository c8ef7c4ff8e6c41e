/**
 * What a BIOS has at F000:FFF0. Linux jumps there in real mode to restart where it finds no better way, and with
 * hardware-reduced ACPI it finds none: it tries EFI before the ACPI reset register (efi_reboot_required in
 * arch/x86/platform/efi/quirks.c), and falls back to the BIOS (arch/x86/kernel/reboot.c).
 */
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { ACPI_RESET_VALUE, PORT_ACPI_RESET, RESET_VECTOR } from '../address-map.ts'

/** mov dx, reset port; mov al, reset value; out dx, al; then hlt for ever. In 16-bit code. */
const CODE = [0xba, PORT_ACPI_RESET & 0xff, PORT_ACPI_RESET >> 8, 0xb0, ACPI_RESET_VALUE, 0xee, 0xf4, 0xeb, 0xfd]

export function writeResetVector(memory: GuestMemory): void {
  memory.write(RESET_VECTOR, Uint8Array.from(CODE))
}
