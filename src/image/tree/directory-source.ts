/** A tree from a directory of this machine, with everything that ext4 can keep. It stays on the directory's own file system. */
import { closeSync, lstatSync, openSync, readdirSync, readlinkSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { readXattrs } from '../../host/xattr.ts'
import { ImageError } from '../errors.ts'
import { type Inode, type InodeKind, newInode } from './inode.ts'

const KINDS: Record<number, InodeKind> = {
  4096: 'fifo',
  8192: 'character',
  16384: 'directory',
  24576: 'block',
  32768: 'file',
  40960: 'symlink',
  49152: 'socket',
}
const SLICE_MS = 12

/** Reads names and attributes; contents are read when the tree is written. */
export async function treeOfDirectory(path: string): Promise<Inode> {
  const linked = new Map<bigint, Inode>()
  let device: bigint | undefined
  const read = (bytePath: string): { inode: Inode; enter: boolean } => {
    const bytes = Buffer.from(bytePath, 'latin1')
    const stat = lstatSync(bytes, { bigint: true })
    device ??= stat.dev
    const kind = KINDS[Number(stat.mode & 0xf000n)]
    if (!kind) throw new ImageError('UNSUPPORTED', `${bytes.toString()} is of a kind that ext4 does not have`)
    const shared = kind !== 'directory' && stat.nlink > 1n ? linked.get(stat.ino) : undefined
    if (shared) return { inode: shared, enter: false }
    const inode = newInode(kind, Number(stat.mode & 0o7777n))
    inode.uid = Number(stat.uid)
    inode.gid = Number(stat.gid)
    inode.mtime = Number(floorDivide(stat.mtimeNs, 1_000_000_000n))
    inode.mtimeNs = Number(stat.mtimeNs - BigInt(inode.mtime) * 1_000_000_000n)
    inode.xattrs = readXattrs(bytes)
    if (kind === 'file') {
      inode.size = Number(stat.size)
      const source = { name: bytes.toString(), acquire: () => openSync(bytes, 'r'), release: closeSync }
      if (inode.size > 0) inode.content = { source, offset: 0 }
    } else if (kind === 'symlink') inode.target = readlinkSync(bytes, 'latin1')
    else if (kind === 'character' || kind === 'block') {
      // glibc's gnu_dev_major and gnu_dev_minor.
      inode.major = Number(((stat.rdev >> 8n) & 0xfffn) | ((stat.rdev >> 32n) & ~0xfffn))
      inode.minor = Number((stat.rdev & 0xffn) | ((stat.rdev >> 12n) & 0xffffff00n))
    }
    if (kind !== 'directory' && stat.nlink > 1n) linked.set(stat.ino, inode)
    // What is mounted below is not part of the tree: its mount point is.
    return { inode, enter: kind === 'directory' && stat.dev === device }
  }
  try {
    const top = read(Buffer.from(path).toString('latin1'))
    if (top.inode.kind !== 'directory')
      throw new ImageError('NOT_FOUND', `${path} is not a directory: name the root of a tree`)
    const pending: [bytePath: string, inode: Inode][] = [[Buffer.from(path).toString('latin1'), top.inode]]
    let restAt = Date.now() + SLICE_MS
    for (let next = pending.pop(); next; next = pending.pop()) {
      const [folder, directory] = next
      for (const name of readdirSync(Buffer.from(folder, 'latin1'), { encoding: 'latin1' })) {
        const { inode, enter } = read(`${folder}/${name}`)
        directory.children!.set(name, inode)
        if (enter) pending.push([`${folder}/${name}`, inode])
      }
      if (Date.now() >= restAt) {
        await setImmediate()
        restAt = Date.now() + SLICE_MS
      }
    }
    return top.inode
  } catch (error) {
    const { code, path: where } = error as NodeJS.ErrnoException
    if (code === 'ENOENT' && where === undefined) throw error
    if (code === 'ENOENT' || code === 'ENOTDIR') {
      throw new ImageError('NOT_FOUND', `${path} is not there, or changed while it was read`, { cause: error })
    }
    if (code === 'EACCES' || code === 'EPERM') {
      throw new ImageError('UNAUTHORIZED', `${where ?? path} may not be read: run as its owner, or leave it out`, {
        cause: error,
      })
    }
    throw error
  }
}

const floorDivide = (value: bigint, by: bigint): bigint => (value >= 0n ? value / by : -((-value + by - 1n) / by))
