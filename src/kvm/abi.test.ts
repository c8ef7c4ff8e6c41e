/** The declarations of structs.ts and ioctls.ts against <linux/kvm.h>, through a C program that gcc compiles here. */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { CAP, EXIT, IOCTL, KVM } from './ioctls.ts'
import type { Member, Struct } from './layout.ts'
import * as declarations from './structs.ts'

const structs: readonly Struct<Record<string, Member>>[] = Object.values(declarations)
const constants: Record<string, number> = { ...IOCTL, ...CAP, ...EXIT, ...KVM }

/** Prints a line for every structure, member and constant as the header has it. */
function cProgram(): string {
  const lines = structs.flatMap(({ name, members }) => [
    `printf("${name} %zu\\n", sizeof(struct ${name}));`,
    ...Object.keys(members).map(
      member =>
        `printf("${name}.${member} %zu %zu\\n", offsetof(struct ${name}, ${member}), sizeof(((struct ${name} *)0)->${member}));`,
    ),
  ])
  for (const name of Object.keys(constants)) lines.push(`printf("${name} %lu\\n", (unsigned long)(${name}));`)
  return `#include <stdio.h>\n#include <stddef.h>\n#include <linux/kvm.h>\nint main(void) {\n${lines.join('\n')}\n}\n`
}

const noCompiler = spawnSync('gcc', ['-E', '-'], { input: '#include <linux/kvm.h>\n' }).status !== 0

describe.skipIf(noCompiler)('the KVM ABI as declared (needs gcc and linux-libc-dev)', () => {
  it('is what <linux/kvm.h> says', () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-abi-'))
    try {
      writeFileSync(join(folder, 'abi.c'), cProgram())
      execFileSync('gcc', ['-o', join(folder, 'abi'), join(folder, 'abi.c')])
      const actual = execFileSync(join(folder, 'abi'), { encoding: 'utf8' }).trim().split('\n')
      const declared = structs.flatMap(({ name, size, members }) => [
        `${name} ${size}`,
        ...Object.entries(members).map(([member, m]) => `${name}.${member} ${m.offset} ${m.width * m.count}`),
      ])
      for (const [name, value] of Object.entries(constants)) declared.push(`${name} ${value}`)
      expect(declared).toEqual(actual)
      expect(structs.length).toBeGreaterThan(20)
    } finally {
      rmSync(folder, { recursive: true })
    }
  })
})
