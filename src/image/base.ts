/**
 * `base`, the image that needs no registry: Debian's static busybox with a link for each of its programs, and the few files of
 * /etc that programs ask for.
 */
import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { closeSync, existsSync, openSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { ImageError } from './errors.ts'
import type { ImageConfig } from './manifest.ts'
import { byteString, type Inode, newInode } from './tree/inode.ts'

const run = promisify(execFile)
const PACKAGE = 'busybox-static'
const INSTALLED = ['/bin/busybox', '/usr/bin/busybox']
/** All files have one time, so that the image is the same wherever it is made: 2024-01-01. */
const TIME = 1_704_067_200
const MAX_BINARY = 16 << 20

export const BASE_CONFIG: ImageConfig = {
  entrypoint: [],
  cmd: ['/bin/sh'],
  env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
  user: '',
  workdir: '/root',
  labels: {},
  stopSignal: undefined,
}

const ETC: Readonly<Record<string, string>> = {
  passwd: 'root:x:0:0:root:/root:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n',
  group: 'root:x:0:\ndaemon:x:1:\ntty:x:5:\ndisk:x:6:\nwheel:x:10:root\nnogroup:x:65534:\n',
  hosts: '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n',
  hostname: 'vitrine\n',
  'resolv.conf': '',
  'nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
  shells: '/bin/sh\n/bin/ash\n',
  profile: "export PS1='\\u@\\h:\\w\\$ '\n",
  'os-release': 'NAME="Vitrine base"\nID=vitrine\nPRETTY_NAME="Vitrine base (busybox)"\n',
}

/** Changes with what this file puts into the image. */
export const BASE_STAMP = createHash('sha256')
  .update(JSON.stringify([ETC, TIME, 1]))
  .digest('hex')
  .slice(0, 16)

export interface BaseImage {
  readonly contentId: string
  readonly root: Inode
}

/** Finds busybox, or fetches its package into `work`, and builds the tree. */
export async function makeBase(work: string, installed: readonly string[] = INSTALLED): Promise<BaseImage> {
  const path = installed.find(isStaticAmd64) ?? (await fetchBusybox(work))
  const bytes = readFileSync(path)
  const root = baseTree(path, bytes)
  const hash = createHash('sha256')
    .update(bytes)
    .update(JSON.stringify([ETC, TIME, describe(root)]))
  return { contentId: `sha256:${hash.digest('hex')}`, root }
}

/** A tree's names and kinds, to tell one version of this file's work from another. */
function describe(inode: Inode): unknown {
  return [...(inode.children ?? [])].map(([name, child]) => [
    name,
    child.kind,
    child.mode,
    child.target,
    describe(child),
  ])
}

export function baseTree(path: string, bytes: Buffer): Inode {
  const root = folder(0o755)
  const put = (parent: Inode, name: string, inode: Inode): Inode => {
    inode.mtime = TIME
    parent.children!.set(byteString(name), inode)
    return inode
  }
  const at = (name: string): Inode => root.children!.get(name)!
  root.mtime = TIME
  for (const name of ['bin', 'dev', 'etc', 'home', 'lib', 'mnt', 'opt', 'proc', 'run', 'srv', 'sys', 'usr', 'var']) {
    put(root, name, folder(0o755))
  }
  put(root, 'root', folder(0o700))
  put(root, 'tmp', folder(0o1777))
  // One directory of programs, whatever name it goes by.
  put(root, 'sbin', symlink('bin'))
  put(root, 'lib64', symlink('lib'))
  put(at('usr'), 'bin', symlink('../bin'))
  put(at('usr'), 'sbin', symlink('../bin'))
  put(at('usr'), 'lib', symlink('../lib'))
  const local = put(at('usr'), 'local', folder(0o755))
  put(local, 'bin', folder(0o755))
  put(local, 'sbin', folder(0o755))
  put(at('usr'), 'share', folder(0o755))
  for (const name of ['cache', 'lib', 'log', 'spool']) put(at('var'), name, folder(0o755))
  put(at('var'), 'tmp', folder(0o1777))
  put(at('var'), 'run', symlink('../run'))

  const busybox = put(at('bin'), 'busybox', newInode('file', 0o755))
  busybox.size = bytes.length
  busybox.content = { source: { name: path, acquire: () => openSync(path, 'r'), release: closeSync }, offset: 0 }
  for (const applet of appletsOf(bytes)) if (applet !== 'busybox') put(at('bin'), applet, symlink('busybox'))

  for (const [name, text] of Object.entries(ETC)) put(at('etc'), name, textFile(text))
  put(at('etc'), 'mtab', symlink('/proc/self/mounts'))
  return root
}

const folder = (mode: number): Inode => newInode('directory', mode)

function symlink(target: string): Inode {
  const inode = newInode('symlink', 0o777)
  inode.target = target
  return inode
}

function textFile(text: string): Inode {
  const inode = newInode('file', 0o644)
  const bytes = Buffer.from(text)
  inode.size = bytes.length
  if (bytes.length > 0) inode.content = { bytes }
  return inode
}

/**
 * The names of busybox's programs, from the table in the binary itself: strings that end in a zero, in order, from `[` to an
 * empty one. (`busybox --list` prints the same, but the binary may not be for this machine.)
 */
export function appletsOf(binary: Buffer): string[] {
  const start = binary.indexOf(Buffer.from('\0[\0[[\0'))
  if (start < 0) throw new ImageError('CORRUPT', `the table of programs in busybox was not found: reinstall ${PACKAGE}`)
  const end = binary.indexOf(Buffer.from('\0\0'), start + 1)
  const names = binary.toString('latin1', start + 1, end).split('\0')
  const valid = names.filter(name => /^[\w.+[-]+$/.test(name))
  if (!valid.includes('sh') || valid.length !== names.length) {
    throw new ImageError('CORRUPT', `the table of programs in busybox makes no sense: reinstall ${PACKAGE}`)
  }
  return valid
}

/** An x86-64 ELF program without an interpreter. */
function isStaticAmd64(path: string): boolean {
  if (!existsSync(path)) return false
  const bytes = readFileSync(path)
  if (bytes.length < 64 || bytes.length > MAX_BINARY || bytes.readUInt32BE(0) !== 0x7f454c46) return false
  if (bytes[4] !== 2 || bytes.readUInt16LE(18) !== 62) return false
  const table = Number(bytes.readBigUInt64LE(32))
  const [size, count] = [bytes.readUInt16LE(54), bytes.readUInt16LE(56)]
  for (let i = 0; i < count; i++) {
    const at = table + i * size
    if (at + 4 > bytes.length || bytes.readUInt32LE(at) === 3) return false // PT_INTERP
  }
  return true
}

async function fetchBusybox(work: string): Promise<string> {
  const remedy = `install it ('apt-get update && apt-get install ${PACKAGE}') or use another image`
  try {
    await run('apt-get', ['download', `${PACKAGE}:amd64`], { cwd: work })
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    if (code === 'ENOENT') {
      throw new ImageError(
        'MISSING_TOOL',
        `the image 'base' needs Debian's ${PACKAGE}, and this machine has no apt-get: ${remedy}`,
      )
    }
    const said = String((error as { stderr?: string }).stderr ?? '')
      .trim()
      .split('\n')
      .at(-1)
    throw new ImageError(
      'MISSING_TOOL',
      `the image 'base' needs Debian's ${PACKAGE}, which cannot be downloaded (${said}): ${remedy}`,
      { cause: error },
    )
  }
  const archive = readdirSync(work).find(name => name.endsWith('.deb'))
  if (!archive) throw new ImageError('MISSING_TOOL', `apt-get left no package: ${remedy}`)
  const unpacked = join(work, 'busybox')
  try {
    await run('dpkg-deb', ['-x', join(work, archive), unpacked])
  } catch (error) {
    throw new ImageError('MISSING_TOOL', `the package ${archive} cannot be unpacked: ${remedy}`, { cause: error })
  }
  const found = INSTALLED.map(path => join(unpacked, path)).find(isStaticAmd64)
  if (!found) throw new ImageError('CORRUPT', `the package ${archive} has no static busybox for x86-64: ${remedy}`)
  return found
}
