/**
 * A real Debian as an OCI layout: mmdebstrap makes the root, umoci the image. Made once and cached, as the kernel of the emulated host
 * is: it takes one to two minutes and 110 MB of the archive's packages.
 *
 * The second layer does what layers do to those below: whiteouts, an opaque directory, hard links into the lower layer, attributes.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder } from '../testbed/host-kernel.ts'
import { has, run } from './oracles.ts'
import { type TarSpec, tarOf } from './tar-writer.ts'

const SUITE = 'bookworm'
const PACKAGES = ['python3', 'gcc', 'libc6-dev', 'bc', 'openssl']
/** What nothing here reads: half of the bytes. */
const LEFT_OUT = [
  ...['man', 'doc', 'locale', 'info', 'zoneinfo'].map(folder => `/usr/share/${folder}/*`),
  ...['/usr/lib/gcc/*/lto1', '/usr/lib/gcc/*/lib*san*', '/usr/lib/*/lib*san.so*', '/usr/bin/*lto-dump*'],
  ...['/usr/lib/*/gconv/*', '/usr/lib/*/perl/*/CORE/*'],
].map(path => `path-exclude=${path}`)
export const DEBIAN_TAG = 'debian'
export const DEBIAN_ENV = ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'LC_ALL=C.UTF-8']

const CAPABILITY = Buffer.from('0100000200040000000000000000000000000000', 'hex')
const UPPER: readonly TarSpec[] = [
  { path: 'etc/apt/.wh.sources.list', data: Buffer.alloc(0) },
  { path: 'var/log/', type: '5', mode: 0o750, gid: 4 },
  { path: 'var/log/.wh..wh..opq', data: Buffer.alloc(0) },
  { path: 'var/log/kept', data: Buffer.from('kept\n'), gid: 4, mode: 0o640 },
  { path: 'srv/', type: '5', mode: 0o2775, uid: 1000, gid: 1000 },
  { path: 'srv/python', type: '1', linkPath: 'usr/bin/python3.11' },
  { path: 'srv/absolute', type: '2', linkPath: '/etc/debian_version' },
  { path: 'srv/ping', data: Buffer.from('x'), mode: 0o755, pax: { 'SCHILY.xattr.security.capability': CAPABILITY } },
  {
    path: 'srv/note',
    data: Buffer.from('noted'),
    mode: 0o4711,
    pax: {
      'SCHILY.xattr.user.note': 'hello',
      'SCHILY.xattr.user.long': 'z'.repeat(900),
      mtime: '1400000001.123456789',
    },
  },
  { path: 'srv/fifo', type: '6', mode: 0o600 },
  { path: `srv/${'long-'.repeat(30)}name`, data: Buffer.from('long') },
]

/** Why there can be no Debian image here, or undefined. */
export function noDebianImage(): string | undefined {
  if (process.getuid?.() !== 0) return 'not root'
  const missing = ['mmdebstrap', 'umoci', 'skopeo', 'docker-registry'].filter(tool => !has(tool))
  return missing.length > 0 ? `not installed: ${missing.join(', ')}` : undefined
}

/** The path of an OCI layout with the image under `DEBIAN_TAG`. */
export function debianImage(): string {
  const recipe = JSON.stringify([SUITE, PACKAGES, LEFT_OUT, UPPER, DEBIAN_ENV, 1])
  const key = createHash('sha256').update(recipe).digest('hex').slice(0, 12)
  const target = join(cacheFolder(), `debian-${SUITE}-${key}`)
  if (existsSync(join(target, 'index.json'))) return target
  mkdirSync(cacheFolder(), { recursive: true })
  const work = mkdtempSync(join(cacheFolder(), 'making-debian-'))
  try {
    const layout = join(work, 'layout')
    const image = `${layout}:${DEBIAN_TAG}`
    const [lower, upper] = [join(work, 'lower.tar'), join(work, 'upper.tar')]
    const options = LEFT_OUT.map(option => `--dpkgopt=${option}`)
    run('mmdebstrap', ['--quiet', '--variant=apt', `--include=${PACKAGES.join(',')}`, ...options, SUITE, lower])
    writeFileSync(upper, tarOf(UPPER))
    run('umoci', ['init', '--layout', layout])
    run('umoci', ['new', '--image', image])
    for (const tar of [lower, upper]) run('umoci', ['raw', 'add-layer', '--image', image, tar])
    const env = DEBIAN_ENV.flatMap(variable => ['--config.env', variable])
    run('umoci', ['config', '--image', image, ...env, '--config.cmd', '/bin/bash'])
    run('umoci', ['gc', '--layout', layout])
    // Somebody else may have been faster, and theirs is as good.
    if (!existsSync(target)) renameSync(layout, target)
  } finally {
    rmSync(work, { recursive: true })
  }
  return target
}

/** Applies the layers with umoci; the path of the root directory below `folder`, which must not exist. */
export function unpackDebian(layout: string, folder: string): string {
  run('umoci', ['unpack', '--image', `${layout}:${DEBIAN_TAG}`, folder])
  return join(folder, 'rootfs')
}

/** Runs a shell script in the unpacked root on this machine's own processor: what a box has to agree with. */
export function runNatively(root: string, script: string): { stdout: string; stderr: string; status: number | null } {
  const env = Object.fromEntries(DEBIAN_ENV.map(variable => variable.split('=', 2) as [string, string]))
  return spawnSync('chroot', [root, '/bin/bash', '-c', script], { encoding: 'utf8', env, maxBuffer: 1 << 28 })
}
