/**
 * This machine's own programs in a guest on the software CPU: the same script here and there must print the same. Debian's kernel,
 * an initramfs of the programs and their libraries. Floating point in 64 and 80 bits, big numbers, hashes, ciphers, compression.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, readFileSync, realpathSync } from 'node:fs'
import { expect, it } from 'vitest'
import { CpioWriter } from '../../src/image/cpio.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import { ConsoleText } from '../boot/console-text.ts'

const BUSYBOX = '/bin/busybox'
const PERL_LIBRARY = '/usr/lib/x86_64-linux-gnu/perl-base'

/** Programs, and what each is to print; a line each, so that a difference names its program. */
const WORK: Record<string, string> = {
  '/usr/bin/bash': 'echo "$((7**20 % 1000003)) $((2**62)) $((-7 / 2)) $((1 << 40 ^ 0xdeadbeef))"',
  '/usr/bin/printf': "printf '%.15g %a %.20Lf\\n' 0.1 3.7 3.14159265358979323846264338327950288",
  '/usr/bin/perl': `perl -e 'my $s=0; for (1..5000){$s=($s*31+$_)%1000007} print "$s ", sqrt(2), " ", sin(1), " ", 10/3, " ", 2**70, " ", exp(-3.5), "\\n"'`,
  '/usr/bin/sha256sum': 'seq 1 2000 | sha256sum',
  '/usr/bin/sort': 'seq 1 500 | sort -rn | sort | tail -n 3 | tr "\\n" " "; echo',
  '/usr/bin/gzip': 'seq 1 3000 | gzip -c | gzip -dc | md5sum',
  '/usr/bin/od': "printf '\\001\\002\\003\\004\\005\\006\\007\\100' | od -An -tf8 -tx4",
  '/usr/bin/openssl': `for a in sha1 sha512; do printf hello | openssl dgst -$a; done; printf 'secret data' | openssl enc -aes-128-cbc -K ${'0f'.repeat(16)} -iv ${'a1'.repeat(16)} | od -An -tx1`,
  '/usr/bin/bc': "echo 'scale=30; e(1); 2^100; sqrt(2)' | bc -l",
  '/usr/bin/awk': `awk 'BEGIN{printf "%.10f %.10f %.3e %d\\n", exp(1), atan2(1,1)*4, 2^70, 12345678*9876}'`,
}
/** Used by the lines above. */
const ALSO = ['/usr/bin/seq', '/usr/bin/md5sum', '/usr/bin/tr', '/usr/bin/tail']

const present = Object.keys(WORK).filter(path => existsSync(path))
const script = present.map(path => WORK[path]!).join('\n')

/** A program and the libraries that ldd names, under the paths that the loader looks for. */
function addProgram(archive: CpioWriter, path: string, done: Set<string>): void {
  const needed = spawnSync('ldd', [path], { encoding: 'utf8' }).stdout.match(/\/[^\s)]+/g) ?? []
  for (const file of [path, ...needed]) {
    const inside = file.replace(/^\/(bin|lib|lib64)\//, '/usr/$1/').slice(1)
    if (done.has(inside)) continue
    done.add(inside)
    archive.file(inside, readFileSync(realpathSync(file)), 0o755)
  }
}

function initramfs(): Uint8Array {
  const archive = new CpioWriter()
  for (const path of ['dev', 'proc', 'tmp', 'usr/bin', 'usr/lib', 'usr/lib64']) archive.directory(path)
  for (const path of ['bin', 'lib', 'lib64']) archive.symlink(path, `usr/${path}`)
  archive.characterDevice('dev/console', 5, 1, 0o600)
  const done = new Set<string>()
  for (const path of [...present, ...ALSO]) addProgram(archive, path, done)
  archive.file('usr/bin/busybox', readFileSync(BUSYBOX), 0o755)
  archive.file('work.sh', new TextEncoder().encode(script))
  const init = `#!/bin/busybox sh
busybox mount -t proc proc /proc; busybox mount -t devtmpfs dev /dev; busybox stty -onlcr </dev/console
export PATH=/usr/bin LC_ALL=C
echo BEGIN; bash /work.sh 2>&1; echo END; busybox poweroff -f
`
  archive.file('init', new TextEncoder().encode(init), 0o755)
  return archive.finish()
}

it.skipIf(!existsSync(BUSYBOX) || present.length < 5)(
  'bash, perl, openssl, bc and others print in the guest what they print here',
  async () => {
    expect(existsSync(PERL_LIBRARY) || !present.includes('/usr/bin/perl')).toBe(true)
    const here = spawnSync('bash', ['-c', `export PATH=/usr/bin LC_ALL=C\n${script}`], { encoding: 'utf8' })
    expect(here.stderr).toBe('')
    const found = await findKernel()
    const machine = await Machine.create({
      accel: 'soft',
      memoryMib: 384,
      kernel: { path: found.path, immutable: true },
      initrd: initramfs(),
      cmdline: 'console=ttyS0 quiet panic=-1',
    })
    const text = new ConsoleText(machine)
    try {
      machine.start()
      await text.waitFor(/END/)
      const there = /BEGIN\r?\n([\s\S]*?)END/.exec(text.all)![1]!.replaceAll('\r', '')
      expect(there).toBe(here.stdout)
    } finally {
      await machine.close()
    }
  },
  400_000,
)
