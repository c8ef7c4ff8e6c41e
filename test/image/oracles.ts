/**
 * What nobody here wrote: e2fsck, debugfs, and Linux's own ext4 through a loop mount, to compare our images with.
 *
 * A tree is described as a map from path to one line of facts, so that a failed comparison reads well.
 */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import {
  closeSync,
  lstatSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  rmdirSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export type TreeFacts = Map<string, string>

export function run(command: string, args: readonly string[], input?: string | Uint8Array): string {
  const result = spawnSync(command, args, {
    encoding: 'latin1',
    maxBuffer: 1 << 30,
    ...(input !== undefined && { input }),
  })
  if (result.error) throw result.error
  if (result.status !== 0) {
    throw new Error(`${command} ${args.join(' ')}: exit status ${result.status}\n${result.stdout}${result.stderr}`)
  }
  return result.stdout
}

/** Whether a program is there. */
export const has = (command: string): boolean => spawnSync('sh', ['-c', `command -v ${command}`]).status === 0

/** Throws with e2fsck's words unless the file system is clean. */
export const checkFileSystem = (image: string): string => run('e2fsck', ['-fn', image])

export const debugfs = (image: string, request: string): string => run('debugfs', ['-R', request, image])

/** Why a loop mount is not possible here, or undefined. */
export const noLoopMount: string | undefined = (() => {
  if (process.getuid?.() !== 0) return 'not root'
  const probe = spawnSync('sh', ['-c', 'losetup -f && grep -qw ext4 /proc/filesystems'])
  return probe.status === 0 ? undefined : 'no loop devices or no ext4 in this kernel'
})()

/** Why a mounted file system cannot be grown here (it takes CAP_SYS_RESOURCE, which is bit 24), or undefined. */
export const noSysResource: string | undefined =
  (Number.parseInt(/CapEff:\s*([0-9a-f]+)/.exec(readFileSync('/proc/self/status', 'latin1'))?.[1] ?? '0', 16) /
    2 ** 24) &
  1
    ? undefined
    : 'no CAP_SYS_RESOURCE'

/** Mounts read-only (and without replaying the journal) while `use` runs. */
export function withMounted<T>(image: string, use: (folder: string) => T): T {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-mount-'))
  run('mount', ['-o', 'loop,ro,noload', image, folder])
  try {
    return use(folder)
  } finally {
    run('umount', [folder])
    rmdirSync(folder)
  }
}

const KINDS: Record<number, string> = {
  4096: 'fifo',
  8192: 'character',
  16384: 'directory',
  24576: 'block',
  32768: 'file',
  40960: 'symlink',
  49152: 'socket',
}

export interface DescribeOptions {
  /** Paths for which the time says nothing (directories that no layer names). */
  readonly ignoreTime?: (path: string) => boolean
}

/** Everything about every file below a folder. Hard links are named by the first path of their group. */
export function describeFolder(root: string, { ignoreTime }: DescribeOptions = {}): TreeFacts {
  const facts: TreeFacts = new Map()
  const firstPath = new Map<bigint, string>()
  const attributes = readAttributes(root)
  const visit = (folder: string, prefix: string): void => {
    const names = readdirSync(Buffer.from(folder, 'latin1'), { encoding: 'latin1' }).sort()
    for (const name of names) {
      const path = `${prefix}/${name}`
      if (path === '/lost+found') continue
      const full = Buffer.from(`${folder}/${name}`, 'latin1')
      const stat = lstatSync(full, { bigint: true })
      const kind = KINDS[Number(stat.mode) & 0xf000] ?? 'unknown'
      const words = [kind, (Number(stat.mode) & 0o7777).toString(8), `${stat.uid}:${stat.gid}`]
      if (!ignoreTime?.(path)) words.push(`mtime ${stat.mtimeNs}`)
      if (kind === 'character' || kind === 'block') words.push(`rdev ${stat.rdev}`)
      if (kind === 'symlink') words.push(`-> ${readlinkSync(full, 'latin1')}`)
      if (kind === 'file') words.push(`size ${stat.size}`, sha256(full))
      if (kind !== 'directory' && stat.nlink > 1n) {
        if (!firstPath.has(stat.ino)) firstPath.set(stat.ino, path)
        words.push(`links ${stat.nlink} with ${firstPath.get(stat.ino)}`)
      }
      const xattrs = attributes.get(path)
      if (xattrs) words.push(xattrs)
      facts.set(path, words.join(' '))
      if (kind === 'directory') visit(`${folder}/${name}`, path)
    }
  }
  visit(root, '')
  return facts
}

function sha256(path: Buffer): string {
  const hash = createHash('sha256')
  const buffer = Buffer.alloc(1 << 20)
  const fd = openSync(path, 'r')
  for (let n = readSync(fd, buffer); n > 0; n = readSync(fd, buffer)) hash.update(buffer.subarray(0, n))
  closeSync(fd)
  return hash.digest('hex').slice(0, 16)
}

/** All extended attributes below a folder, by getfattr. */
function readAttributes(root: string): Map<string, string> {
  const found = new Map<string, string>()
  const output = run('getfattr', ['-R', '-P', '-h', '-d', '-m', '-', '-e', 'hex', '--absolute-names', root])
  for (const part of output.split('\n\n')) {
    const [header, ...values] = part.trim().split('\n')
    if (!header?.startsWith('# file: ')) continue
    // getfattr escapes bytes that do not print as \ooo.
    const path = header.slice(8).replace(/\\(\d{3})/g, (_, octal) => String.fromCharCode(Number.parseInt(octal, 8)))
    found.set(path.slice(root.length), values.sort().join(' '))
  }
  return found
}
