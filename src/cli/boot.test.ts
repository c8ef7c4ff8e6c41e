/** `vitrine boot` as a user runs it, with micro-guests for kernels: output, exit status, and one line for every mistake. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { acceleratorNames, loadAccelerator } from '../accel/select.ts'
import { assetPath } from '../host/assets.ts'
import { elfFixture } from '../machine/boot/kernel-fixtures.ts'
import { ECHO, HELLO, REBOOT_I8042, TRIPLE_FAULT } from '../machine/micro-programs.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-boot-'))
afterAll(() => rmSync(folder, { recursive: true }))

let accel: string | undefined
for (const name of acceleratorNames()) {
  if ((await (await loadAccelerator(name)).probe()).runsMicroGuests) accel ??= name
}

function kernel(name: string, program: Uint8Array): string {
  const path = join(folder, name)
  writeFileSync(path, elfFixture({ segments: [{ address: 0x10_0000, content: program }] }))
  return path
}

function vitrine(args: readonly string[], input = ''): { status: number | null; stdout: string; stderr: string } {
  const env = { ...process.env, VITRINE_KERNEL: '', VITRINE_HOME: join(folder, 'home'), VITRINE_DEBUG: '' }
  return spawnSync(process.execPath, [assetPath('cli.js'), ...args], { encoding: 'utf8', input, timeout: 110_000, env })
}

describe.skipIf(accel === undefined)('vitrine boot', () => {
  const boot = (path: string, ...more: string[]) =>
    vitrine(['boot', '--accel', accel!, '-m', '16', '-k', path, ...more])

  it('shows the console and ends with 0 when the guest powers off', () => {
    expect(boot(kernel('hello', HELLO))).toEqual(expect.objectContaining({ status: 0, stdout: 'Hello\n', stderr: '' }))
  })

  it('takes input from a pipe', () => {
    const { stdout, status } = vitrine(['boot', '--accel', accel!, '-m', '16', '-k', kernel('echo', ECHO)], 'typed.')
    expect([stdout, status]).toEqual(['typed.', 0])
  })

  it('tells a restart and a triple fault by its status, and shows the registers', () => {
    expect(boot(kernel('reset', REBOOT_I8042), '--exit-on-reboot').status).toBe(10)
    const fault = boot(kernel('fault', TRIPLE_FAULT))
    expect(fault.status).toBe(11)
    expect(fault.stderr).toMatch(/triple fault at 0x1000/)
    expect(fault.stderr).toMatch(/rax 0000000000001234/)
    expect(fault.stderr).toMatch(/code .*0f 0b/)
  })

  it('tells scripts how it ended, on a line of its own after the console', () => {
    const hello = boot(kernel('json', HELLO), '--json').stdout.split('\n')
    expect(hello[0]).toBe('Hello')
    expect(JSON.parse(hello[1]!)).toMatchObject({ reason: 'power-off', status: 0, accelerator: accel })
    const { stdout } = vitrine(['boot', '--accel', accel!, '-m', '16', '-k', kernel('echo', ECHO), '--json'], 'typed.')
    expect(stdout.split('\n')[0]).toBe('typed.')
    expect(JSON.parse(stdout.split('\n')[1]!)).toMatchObject({ reason: 'power-off' })
    const fault = JSON.parse(boot(kernel('fault', TRIPLE_FAULT), '--json').stdout) as { registers: string[] }
    expect(fault).toMatchObject({ reason: 'triple-fault', status: 11, cpu: 0 })
    expect(fault.registers.join()).toMatch(/rax 0000000000001234/)
  })

  it.each(['interpreter', 'compiler', 'lockstep'])('runs on one tier of the software CPU, or on both: %s', tier => {
    const path = kernel('tier', ECHO)
    const { stdout, status } = vitrine(['boot', '-m', '16', '-k', path, '--tier', tier, '--json'], 'in turn.')
    const [text, line] = stdout.split('\n')
    expect([text, status]).toEqual(['in turn.', 0])
    expect(JSON.parse(line!)).toMatchObject({ reason: 'power-off', accelerator: 'soft' })
  })

  it('tells instructions and exits on standard error', () => {
    const exits = vitrine(['boot', '-m', '16', '-k', kernel('hello', HELLO), '--trace', 'exits'])
    expect(exits.stdout).toBe('Hello\n')
    expect(exits.stderr).toMatch(/^cpu0 out 3f8\/1 = 48\n/)
    const { stderr } = vitrine(['boot', '-m', '16', '-k', kernel('hello', HELLO), '--trace', 'instructions'])
    expect(stderr).toMatch(/^cpu0 0 0000000000100007: b906000000 +rcx=6$/m)
  })

  it('adds figures when asked', () => {
    expect(boot(kernel('stats', HELLO), '--stats').stderr).toMatch(/made in \d+ ms, ran for \d+ ms/)
  })
})

describe('vitrine boot, used wrongly', () => {
  const text = join(folder, 'text')
  writeFileSync(text, 'not a kernel')

  it.each<[string, string[], number, RegExp]>([
    ['no such kernel', ['--kernel', join(folder, 'none')], 1, /there is no kernel/],
    ['a folder for a kernel', ['--kernel', folder], 1, /cannot be read/],
    ['no such initrd', ['--kernel', text, '--initrd', join(folder, 'none')], 2, /initrd .* no such file/],
    ['an unknown accelerator', ['--accel', 'magic'], 2, /one of auto, kvm/],
    ['an unknown tier', ['--tier', 'third'], 2, /one of auto, interpreter, compiler, lockstep/],
    ['a tier of KVM', ['--accel', 'kvm', '--tier', 'auto'], 2, /of the software CPU: give --accel soft/],
    ['CPUs in lockstep', ['--kernel', kernel('smp', HELLO), '--tier', 'lockstep', '--cpus', '2'], 1, /has one CPU/],
    ['an unknown protocol', ['--protocol', 'bios'], 2, /pvh or linux64/],
    ['words for CPUs', ['--kernel', text, '--cpus', 'two'], 2, /whole number/],
    ['no CPUs', ['--kernel', text, '--cpus', '0'], 1, /0 CPUs: give 1 to/],
    ['too much memory', ['--kernel', text, '--memory', '900G'], 1, /MiB of memory: give/],
    ['an argument', ['vmlinux'], 2, /one argument too many/],
  ])('%s', (_name, args, status, message) => {
    const result = vitrine(['boot', ...args])
    expect(result.stderr).toMatch(message)
    expect(result.stderr).not.toMatch(/\n {4}at /)
    expect(result.status).toBe(status)
  })

  it.skipIf(accel === undefined)('a file that is no kernel', () => {
    const result = vitrine(['boot', '--accel', accel!, '--kernel', text])
    expect(result.stderr).toBe(
      'vitrine: the kernel is neither an ELF vmlinux nor a bzImage: give one of those, for x86-64\n',
    )
    expect(result.status).toBe(1)
  })
})

describe('vitrine kernel', () => {
  it('lists none where there are none, for people and for scripts', () => {
    expect(vitrine(['kernel']).stdout).toMatch(/No kernel yet/)
    expect(JSON.parse(vitrine(['kernel', '--json']).stdout)).toEqual([])
    expect(vitrine(['kernel', 'polish']).status).toBe(2)
  })
})
