/**
 * A Debian with the programs that use a network: apt, curl, git, ping, iperf3, and this machine's own node and npm. A tarball, made once by
 * mmdebstrap and cached, as the kernel of the emulated host is; boxes take it as an image.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { cacheFolder } from '../testbed/host-kernel.ts'

const SUITE = 'bookworm'
const PACKAGES = [
  'ca-certificates',
  'curl',
  'git',
  'iperf3',
  'iproute2',
  'iputils-ping',
  'bind9-dnsutils',
  'openssl',
  'python3',
]
/** What nothing here reads; a third of the files. */
const LEFT_OUT = ['man', 'doc', 'locale', 'info'].map(folder => `path-exclude=/usr/share/${folder}/*`)
const VERSION = 1

const npmFolder = (): string => join(dirname(process.execPath), '../lib/node_modules/npm')

/** Why there can be no such image here, or undefined. */
export function noNetworkImage(): string | undefined {
  if (process.getuid?.() !== 0) return 'not root'
  if (!existsSync('/usr/bin/mmdebstrap')) return 'not installed: mmdebstrap'
  return existsSync(npmFolder()) ? undefined : `no npm at ${npmFolder()}`
}

/** The path of the tarball. */
export function networkImage(): string {
  const recipe = JSON.stringify([SUITE, PACKAGES, LEFT_OUT, process.version, VERSION])
  const key = createHash('sha256').update(recipe).digest('hex').slice(0, 12)
  const target = join(cacheFolder(), `network-${SUITE}-${key}.tar`)
  if (existsSync(target)) return target
  mkdirSync(cacheFolder(), { recursive: true })
  const work = mkdtempSync(join(cacheFolder(), 'making-network-'))
  try {
    const tar = join(work, 'root.tar')
    const hooks = [
      `upload ${process.execPath} /usr/bin/node`,
      'mkdir -p "$1/usr/lib/node_modules"',
      `cp -r ${npmFolder()} "$1/usr/lib/node_modules/npm"`,
      'chmod 755 "$1/usr/bin/node"',
      'ln -s ../lib/node_modules/npm/bin/npm-cli.js "$1/usr/bin/npm"',
    ]
    const { status, stderr } = spawnSync(
      'mmdebstrap',
      [
        ...['--quiet', '--variant=apt', `--include=${PACKAGES.join(',')}`],
        ...LEFT_OUT.map(option => `--dpkgopt=${option}`),
        ...hooks.map(hook => `--customize-hook=${hook}`),
        ...[SUITE, tar],
      ],
      { encoding: 'utf8' },
    )
    if (status !== 0) throw new Error(`mmdebstrap failed:\n${stderr}`)
    // Somebody else may have been faster, and theirs is as good.
    if (!existsSync(target)) renameSync(tar, target)
  } finally {
    rmSync(work, { recursive: true })
  }
  return target
}
