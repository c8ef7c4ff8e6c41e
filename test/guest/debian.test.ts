/**
 * A real Debian in a box: made by mmdebstrap, pushed by skopeo to Debian's own registry, pulled, made a disk of, and booted on the software
 * CPU. What it is compared with is the same layers applied by umoci, and the same programs run there by this machine's own processor.
 */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Box, Runtime } from '../../src/index.ts'
import { DEBIAN_TAG, debianImage, noDebianImage, runNatively, unpackDebian } from '../image/debian-image.ts'
import { checkFileSystem, has, run } from '../image/oracles.ts'
import { type RunningRegistry, startRegistry } from '../image/registry-process.ts'

const LIMIT_MS = 300_000

/** Every file: what it is, whose, since when, with which attributes and contents. Mounts and what the agent writes are left out. */
const WALK = `
import os, stat, sys, zlib
root = sys.argv[1]
ours = {'/etc/hosts', '/etc/hostname', '/etc/resolv.conf', '/lost+found'}
first = {}
def facts(path, name):
    s = os.lstat(path or '/')
    words = [stat.filemode(s.st_mode), '%d:%d' % (s.st_uid, s.st_gid)]
    # The root has no entry in a layer, and the agent's files stand in /etc.
    if name not in ('', '/etc'): words.append(str(s.st_mtime_ns))
    if stat.S_ISLNK(s.st_mode): words.append(os.readlink(path))
    if stat.S_ISBLK(s.st_mode) or stat.S_ISCHR(s.st_mode): words.append(str(s.st_rdev))
    if stat.S_ISREG(s.st_mode):
        with open(path, 'rb') as f: words.append('%d %08x' % (s.st_size, zlib.crc32(f.read())))
        if s.st_nlink > 1: words.append('%d with %s' % (s.st_nlink, first.setdefault(s.st_ino, name)))
    for key in sorted(os.listxattr(path or '/', follow_symlinks=False)):
        words.append(key + '=' + os.getxattr(path, key, follow_symlinks=False).hex())
    print(name or '/', *words)
    if stat.S_ISDIR(s.st_mode):
        for entry in sorted(os.listdir(path or '/')):
            if name + '/' + entry not in ours: facts(path + '/' + entry, name + '/' + entry)
# A bind mount shows what is under the mounts of /dev, /proc, /run, /sys and /tmp. The image has no mount(8).
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
if root != '/' and libc.mount(b'/', root.encode(), None, 4096, None) != 0: sys.exit(os.strerror(ctypes.get_errno()))
facts(root.rstrip('/') or '', '')
if root != '/': libc.umount2(root.encode(), 2)
`

/** Programs and what each is to do; a line each, so that a difference names its program. Times and names of the machine do not occur. */
const USER_LAND: Readonly<Record<string, string>> = {
  bash: 'echo "$((7**20 % 1000003)) $((2**62)) $((-7 / 2)) $((1 << 40 ^ 0xdeadbeef))"; for i in {1..2000}; do ((s += i * i)); done; echo $s',
  printf: "/usr/bin/printf '%.15g %a %.20Lf\\n' 0.1 3.7 3.14159265358979323846264338327950288",
  perl: `perl -e 'my $s=0; for (1..20000){$s=($s*31+$_)%1000007} print "$s ", sqrt(2), " ", sin(1), " ", 10/3, " ", 2**70, " ", exp(-3.5), " ", join(",", map { ucfirst } sort { $b cmp $a } split /\\W+/, "the quick brown fox"), "\\n"'`,
  python: `python3 -c '
import decimal, fractions, hashlib, json, math, random, re, struct, zlib
random.seed(7)
print(2**521 % 1000003, math.factorial(60), math.gamma(5.5), math.erf(0.3), repr(0.1 + 0.2), decimal.Decimal(2).sqrt())
print([round(random.gauss(0, 1), 9) for _ in range(5)], fractions.Fraction(22, 7) ** 9)
data = json.dumps({str(i): [i ** 0.5, i ** 3] for i in range(300)}, sort_keys=True).encode()
print(hashlib.sha256(data).hexdigest(), hashlib.blake2b(data).hexdigest()[:32], zlib.crc32(data), len(re.findall(rb"\\d+", data)))
print(zlib.decompress(zlib.compress(data, 9)) == data, struct.pack("<dqf", 1 / 3, -5, 2.5).hex())
'`,
  sha256sum: 'seq 1 20000 | sha256sum; seq 1 5000 | sha512sum; seq 1 5000 | md5sum',
  sort: 'seq 1 3000 | sort -rn | sort | md5sum; printf "b 2\\na 10\\nc 1\\n" | sort -k2 -n | tr "\\n" " "; echo',
  gzip: 'seq 1 20000 | gzip -9nc | sha256sum; seq 1 20000 | gzip -c | gzip -dc | md5sum',
  od: "printf '\\001\\002\\003\\004\\005\\006\\007\\100' | od -An -tf8 -tx4 -tfL",
  openssl: `for a in sha1 sha512 sha3-256 blake2s256; do printf hello | openssl dgst -$a; done
for c in aes-128-cbc aes-256-ctr camellia-128-cbc chacha20; do printf 'secret data' | openssl enc -$c -K $(printf '0f%.0s' {1..32}) -iv $(printf 'a1%.0s' {1..16}) 2>/dev/null | od -An -tx1; done
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 | openssl pkey -check -noout; openssl ecparam -name secp384r1 -check -noout 2>&1
openssl prime 170141183460469231731687303715884105727
openssl genpkey -algorithm ed25519 -out /root/k.pem && printf sign > /root/m && openssl pkeyutl -sign -rawin -inkey /root/k.pem -in /root/m -out /root/s && openssl pkeyutl -verify -rawin -inkey /root/k.pem -in /root/m -sigfile /root/s; rm -f /root/k.pem /root/m /root/s`,
  bc: "echo 'scale=60; e(1); 2^200; sqrt(2); a(1)*4; l(7)' | bc -l",
  awk: `awk 'BEGIN{printf "%.10f %.10f %.3e %d\\n", exp(1), atan2(1,1)*4, 2^70, 12345678*9876; for(i=0;i<2000;i++) s+=sqrt(i); print s}'`,
  find: "find /usr/lib/python3.11 -name '*.py' -size +100k | sort | tail -n 5",
  diff: 'cd /tmp; seq 1 50 > a; seq 1 3 60 > b; diff a b | md5sum; rm a b; sed -n "s/^root:\\([^:]*\\):.*/\\1/p" /etc/passwd',
}

const PROGRAM = `
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static jmp_buf back;
static volatile sig_atomic_t caught;
static void on_fault(int s) { caught = s; siglongjmp((void *)back, 1); }
static int compare(const void *a, const void *b) { double d = *(double *)a - *(double *)b; return d < 0 ? -1 : d > 0; }
int main(void) {
	double v[1000], sum = 0; uint64_t x = 88172645463325252ull;
	for (int i = 0; i < 1000; i++) { x ^= x << 13; x ^= x >> 7; x ^= x << 17; v[i] = sin((double)(x % 1000003)) * 1e3; }
	qsort(v, 1000, sizeof *v, compare);
	for (int i = 0; i < 1000; i++) sum += v[i] * i;
	printf("%.17g %.17g %.17g\\n", v[0], v[999], sum);
	long double l = 1; for (int i = 1; i < 25; i++) l *= i / 3.0L; printf("%.20Lg\\n", l);
	printf("%" PRIu64 " %s\\n", (uint64_t)((unsigned __int128)x * x >> 64), strstr("in a haystack, a needle", "needle"));
	signal(SIGSEGV, on_fault); signal(SIGFPE, on_fault);
	if (!setjmp(back)) *(volatile int *)8 = 1; printf("fault %d\\n", (int)caught);
	volatile int zero = 0; if (!setjmp(back)) printf("%d\\n", 1 / zero); printf("fault %d\\n", (int)caught);
	fflush(stdout);
	int p[2], status; pipe(p);
	if (!fork()) { dprintf(p[1], "child\\n"); _exit(42); }
	char text[16]; ssize_t n = read(p[0], text, sizeof text); wait(&status);
	printf("%.*s%d\\n", (int)n, text, WEXITSTATUS(status));
	return 0;
}
`

const missing = ['dpkg-scanpackages', 'qemu-img'].filter(tool => !has(tool))
const reason = noDebianImage() ?? (missing.length > 0 ? `not installed: ${missing.join(', ')}` : undefined)

/** A repository of two packages, one of which needs the other, as dpkg-scanpackages describes them. */
function makeRepository(folder: string): void {
  const make = (name: string, depends: string, script: string): void => {
    const root = join(folder, name)
    mkdirSync(join(root, 'DEBIAN'), { recursive: true })
    mkdirSync(join(root, 'usr/bin'), { recursive: true })
    const about = [
      'Version: 1.2',
      'Architecture: all',
      'Maintainer: Nobody <nobody@example.org>',
      'Description: a test',
    ]
    const control = [`Package: ${name}`, ...about, ...(depends ? [`Depends: ${depends}`] : [])]
    writeFileSync(join(root, 'DEBIAN/control'), `${control.join('\n')}\n`)
    writeFileSync(join(root, 'DEBIAN/postinst'), `#!/bin/sh\necho "${name} was set up: $1" >> /var/log/set-up\n`, {
      mode: 0o755,
    })
    writeFileSync(join(root, 'usr/bin', name), script, { mode: 0o755 })
    run('dpkg-deb', ['--root-owner-group', '-b', root, folder])
    rmSync(root, { recursive: true })
  }
  make('vitrine-library', '', '#!/bin/sh\necho "library called with $*"\n')
  make(
    'vitrine-hello',
    'vitrine-library, python3',
    '#!/usr/bin/python3\nimport os\nos.execvp("vitrine-library", ["x", "hello"])\n',
  )
  writeFileSync(
    join(folder, 'Packages'),
    run('sh', ['-c', `cd '${folder}' && dpkg-scanpackages --multiversion . 2>/dev/null`]),
  )
}

describe.skipIf(reason)('a Debian image in a box', { timeout: LIMIT_MS }, () => {
  const scratch = mkdtempSync(join(tmpdir(), 'vitrine-debian-'))
  const home = join(scratch, 'home')
  const runtime = new Runtime({ home, defaults: { memoryMib: 768, diskGib: 2 } })
  let registry: RunningRegistry
  let packages: Server
  let root = ''
  let digest = ''
  let box: Box

  const inBox = async (script: string): Promise<string> => {
    const { stdout, stderr, exitCode } = await box.exec('bash', ['-c', script])
    expect({ stderr, exitCode, ...(exitCode !== 0 && { stdout }) }).toEqual({ stderr: '', exitCode: 0 })
    return stdout
  }
  const natively = (script: string): string => {
    // The guest's CPU has no AVX and no FMA, with which glibc would compute other last digits.
    const { stdout, stderr, status } = runNatively(
      root,
      `export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX\n${script}`,
    )
    expect({ stderr, status }).toEqual({ stderr: '', status: 0 })
    return stdout
  }

  beforeAll(async () => {
    const layout = debianImage()
    // The kernel is this machine's; the images are this test's, with a registry that will be gone.
    await findKernel()
    mkdirSync(home)
    symlinkSync(kernelsFolder(), join(home, 'kernels'))
    root = unpackDebian(layout, join(scratch, 'bundle'))
    registry = await startRegistry(scratch)
    const target = `docker://${registry.host}/debian:12`
    run('skopeo', ['copy', '-q', '--dest-tls-verify=false', `oci:${layout}:${DEBIAN_TAG}`, target])
    digest = run('skopeo', ['inspect', '--tls-verify=false', '--format', '{{.Digest}}', target]).trim()
    const repository = join(scratch, 'repository')
    mkdirSync(repository)
    makeRepository(repository)
    packages = createServer((request, response) => {
      try {
        response.end(readFileSync(join(repository, new URL(request.url ?? '', 'http://x').pathname)))
      } catch {
        response.writeHead(404).end()
      }
    })
    await new Promise<void>(resolve => packages.listen(0, '127.0.0.1', resolve))
    const network = { allow: ['host.vitrine.internal'] }
    box = await Box.create(
      { image: `${registry.host}/debian:12`, name: 'debian', accel: 'soft', network, template: false },
      runtime,
    )
    await box.start()
  }, LIMIT_MS * 2)

  afterAll(async () => {
    await box?.remove({ force: true })
    await registry?.stop()
    packages?.close()
    rmSync(scratch, { recursive: true, force: true })
  }, LIMIT_MS)

  it('is the same by tag and by digest, and its file system is clean', async () => {
    const same = await Box.create({ image: `${registry.host}/debian@${digest}` }, runtime)
    const disk = (b: Box) => (JSON.parse(readFileSync(b.folder.record, 'utf8')) as { baseDisk: string }).baseDisk
    expect(disk(same)).toBe(disk(box))
    await same.remove()
    checkFileSystem(disk(box))
    expect(box.commandLine()).toEqual(['/bin/bash'])
  })

  it('holds exactly the tree that umoci makes of the layers', async () => {
    await box.files.write('/run/walk.py', WALK)
    writeFileSync(join(root, 'run/walk.py'), WALK)
    const expected = natively('python3 -B /run/walk.py /; rm /run/walk.py').split('\n')
    const actual = (await inBox('python3 -B /run/walk.py /mnt')).split('\n')
    const outside = (line: string): boolean => !/^\/(run(\/walk.py)?|mnt) /.test(line)
    expect(actual.filter(outside)).toEqual(expected.filter(outside))
    expect(actual.length).toBeGreaterThan(5000)
    expect(actual.some(line => line.includes('security.capability='))).toBe(true)
  })

  it('runs its user land as the processor does', async () => {
    const results: Record<string, string> = {}
    const expected: Record<string, string> = {}
    for (const [name, script] of Object.entries(USER_LAND)) {
      expected[name] = natively(script)
      results[name] = await inBox(script)
    }
    expect(results).toEqual(expected)
  })

  it('compiles and runs a program', async () => {
    const script = `cd /root && cat > p.c <<'END'\n${PROGRAM}\nEND\ngcc -O2 -w -S p.c -o p.s && sha256sum p.s && gcc -O2 -w p.c -o p -lm && ./p; rm -f p p.c p.s`
    expect(await inBox(script)).toBe(natively(script))
  })

  it('installs packages with apt-get', async () => {
    const { port } = packages.address() as { port: number }
    await box.files.write('/etc/apt/sources.list', `deb [trusted=yes] http://host.vitrine.internal:${port} ./\n`)
    const output = await inBox('apt-get -q update 2>&1 && apt-get -qy install vitrine-hello 2>&1')
    expect(output).toMatch(/Setting up vitrine-library.*[\s\S]*Setting up vitrine-hello/)
    expect(await inBox('vitrine-hello; cat /var/log/set-up; dpkg -s vitrine-hello | grep Status')).toBe(
      'library called with hello\nvitrine-library was set up: configure\nvitrine-hello was set up: configure\nStatus: install ok installed\n',
    )
  })

  it('leaves a clean file system, with what was installed on it', async () => {
    await box.stop()
    const raw = join(scratch, 'disk.raw')
    run('qemu-img', ['convert', '-O', 'raw', box.folder.disk, raw])
    checkFileSystem(raw)
    expect(run('debugfs', ['-R', 'cat /usr/bin/vitrine-library', raw])).toContain('library called')
  })
})
