/**
 * The boot protocol's structures against <asm/bootparam.h>: a C program reads the zero page that we wrote, and writes the
 * header of a bzImage that we then read.
 */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { COMMAND_LINE, ZERO_PAGE } from '../address-map.ts'
import { parseBzImage } from './bzimage.ts'
import { elfFixture } from './kernel-fixtures.ts'
import { loadGuest } from './load.ts'

const PROGRAM = `
#include <stdio.h>
#include <string.h>
#include <asm/bootparam.h>
static struct boot_params page;
static unsigned char image[8192];
int main(int argc, char **argv) {
  struct setup_header *h = &page.hdr;
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (sizeof page != 4096 || !in || !out || fread(&page, sizeof page, 1, in) != 1) return 1;
  printf("boot_flag %x header %.4s version %x loader %x flags %x\\n", h->boot_flag, (char *)&h->header, h->version,
         h->type_of_loader, h->loadflags & LOADED_HIGH);
  printf("cmdline %x+%u ramdisk %x+%u aligned %d\\n", h->cmd_line_ptr, h->cmdline_size, h->ramdisk_image, h->ramdisk_size,
         h->kernel_alignment != 0);
  printf("rsdp %llx\\n", (unsigned long long)page.acpi_rsdp_addr);
  for (int i = 0; i < page.e820_entries; i++)
    printf("e820 %llx+%llx %u\\n", (unsigned long long)page.e820_table[i].addr, (unsigned long long)page.e820_table[i].size,
           page.e820_table[i].type);
  struct setup_header made = { .setup_sects = 3, .boot_flag = 0xaa55, .version = 0x020f, .xloadflags = XLF_KERNEL_64,
    .payload_offset = 0x123, .payload_length = 1000, .init_size = 0x345000 };
  memcpy(&made.header, "HdrS", 4);
  memcpy(image + 0x1f1, &made, sizeof made);
  memset(image + 4 * 512 + 0x123, 'p', 1000);
  return fwrite(image, sizeof image, 1, out) != 1;
}
`

const noHeader = spawnSync('gcc', ['-E', '-'], { input: '#include <asm/bootparam.h>\n' }).status !== 0

describe.skipIf(noHeader)('the boot protocol (needs gcc and linux-libc-dev)', () => {
  it('has its fields where <asm/bootparam.h> has them', () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-boot-abi-'))
    try {
      const [program, page, image] = ['check', 'page', 'image'].map(name => join(folder, name))
      writeFileSync(`${program}.c`, PROGRAM)
      execFileSync('gcc', ['-Wall', '-Werror', '-Wno-unused-parameter', '-o', program!, `${program}.c`])
      const memory = GuestMemory.create(64)
      const initrd = new Uint8Array(5000).fill(7)
      const settings = { commandLine: 'console=ttyS0 quiet', cpus: 1, slots: 0, generationId: new Uint8Array(16) }
      loadGuest(memory, { ...settings, kernel: elfFixture(), initrd, protocol: 'linux64' })
      writeFileSync(page!, memory.slice(ZERO_PAGE, 4096))
      const read = execFileSync(program!, [page!, image!], { encoding: 'utf8' }).trim().split('\n')

      const [, ramdisk] = /ramdisk ([0-9a-f]+)\+5000 aligned 1/.exec(read[1]!) ?? []
      expect(memory.slice(Number.parseInt(ramdisk!, 16), 5000)).toEqual(initrd)
      const [, commandLine, size] = /cmdline ([0-9a-f]+)\+(\d+)/.exec(read[1]!) ?? []
      expect([Number.parseInt(commandLine!, 16), Number(size)]).toEqual([COMMAND_LINE, settings.commandLine.length])
      expect(read[0]).toBe('boot_flag aa55 header HdrS version 20f loader ff flags 1')
      const rsdp = Number.parseInt(read[2]!.slice(5), 16)
      expect(Buffer.from(memory.slice(rsdp, 8)).toString()).toBe('RSD PTR ')
      // RAM to the MP table, what is reserved below 1 MiB, and the rest of 64 MiB.
      expect(read.slice(3)).toEqual(['e820 0+9fc00 1', 'e820 9fc00+60400 2', 'e820 100000+3f00000 1'])

      const parsed = parseBzImage(readFileSync(image!))
      expect(parsed).toMatchObject({ initSize: 0x34_5000, protocol: 0x20f })
      expect([parsed.payload.length, parsed.payload.every(byte => byte === 0x70)]).toEqual([1000, true])
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
