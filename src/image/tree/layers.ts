/**
 * Applies layers to a tree, lowest first (OCI image-spec, layer.md, "Applying Changesets"; umoci is the oracle).
 *
 * Paths never leave the root: `..` in a name is refused, and symbolic links on the way to a name are followed inside the root
 * only, as a process in the box would see them.
 */
import { closeSync, openSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { ImageError } from '../errors.ts'
import { type ContentSource, type Inode, newInode, textOf } from './inode.ts'
import { type TarEntry, TarReader } from './tar-reader.ts'

const WHITEOUT = '.wh.'
const OPAQUE = '.wh..wh..opq'
/** Names of AUFS's own bookkeeping, which some old layers carry. */
const AUFS_META = '.wh..wh.'
const MAX_SYMLINKS = 40
const MAX_NAME = 255
const SLICE_MS = 12

export class LayeredTree implements Disposable {
  readonly root: Inode = newInode('directory', 0o755)
  readonly #open: number[] = []
  /** Names that the current layer put into a directory: its whiteouts hide only what is below. */
  #added = new Map<Inode, Set<string>>()
  #layers = 0
  /** The directory of the entry before, which most entries share. */
  #lastParent: { path: string; inode: Inode } | undefined
  #entries = 0

  get entries(): number {
    return this.#entries
  }

  /** Applies the uncompressed tar at `path`. The file must stay until the tree is written; `name` is for messages. */
  async applyTar(path: string, name: string): Promise<void> {
    const fd = openSync(path, 'r')
    this.#open.push(fd)
    const source: ContentSource = { name, acquire: () => fd, release: () => undefined }
    this.#added = new Map()
    this.#lastParent = undefined
    let restAt = Date.now() + SLICE_MS
    for (const entry of new TarReader(fd, name)) {
      this.#apply(entry, source)
      this.#entries++
      if (this.#entries % 256 === 0 && Date.now() >= restAt) {
        await setImmediate()
        restAt = Date.now() + SLICE_MS
      }
    }
    this.#layers++
  }

  /** Closes the archives: contents can no longer be read. */
  [Symbol.dispose](): void {
    for (const fd of this.#open.splice(0)) closeSync(fd)
  }

  #apply(entry: TarEntry, source: ContentSource): void {
    const { folder, name } = splitPath(entry.path, source)
    if (name === '') {
      if (entry.kind === 'directory') setAttributes(this.root, entry)
      return
    }
    if (name.startsWith(WHITEOUT)) {
      if (name === OPAQUE) {
        const parent = this.#existing(folder, source)
        if (parent) this.#hideChildren(parent)
      } else if (!name.startsWith(AUFS_META)) this.#hide(folder, name.slice(WHITEOUT.length), source)
      return
    }
    const parent = this.#parent(folder, source)
    if (entry.kind === 'link') this.#put(parent, name, this.#linkTarget(entry, source))
    else if (entry.kind === 'directory') {
      const present = parent.children!.get(name)
      const directory = present?.kind === 'directory' ? present : newInode('directory', 0)
      setAttributes(directory, entry)
      this.#put(parent, name, directory)
    } else {
      const inode = newInode(entry.kind, 0)
      setAttributes(inode, entry)
      inode.size = entry.size
      if (entry.kind === 'file' && entry.size > 0) {
        const { offset, map } = entry
        inode.content = map ? { source, offset, map } : { source, offset }
      }
      if (entry.kind === 'symlink') {
        if (entry.linkPath === '' || entry.linkPath.includes('\0'))
          throw badEntry(entry, source, 'a link without a target')
        inode.target = entry.linkPath
        inode.mode = 0o777
      }
      inode.major = entry.major
      inode.minor = entry.minor
      this.#put(parent, name, inode)
    }
  }

  #put(parent: Inode, name: string, inode: Inode): void {
    const present = parent.children!.get(name)
    if (present !== inode) {
      parent.children!.set(name, inode)
      if (present) this.#lastParent = undefined
    }
    if (this.#layers === 0) return
    const names = this.#added.get(parent)
    if (names) names.add(name)
    else this.#added.set(parent, new Set([name]))
  }

  #linkTarget(entry: TarEntry, source: ContentSource): Inode {
    const { folder, name } = splitPath(entry.linkPath, source)
    const target = this.#existing(folder, source)?.children?.get(name)
    if (!target) throw badEntry(entry, source, `a hard link to '${textOf(entry.linkPath)}', which does not exist`)
    if (target.kind === 'directory') throw badEntry(entry, source, 'a hard link to a directory')
    return target
  }

  /** Hides what lower layers have at a name. */
  #hide(folder: readonly string[], name: string, source: ContentSource): void {
    const parent = this.#existing(folder, source)
    const target = parent?.children?.get(name)
    if (!parent || !target || name === '') return
    this.#lastParent = undefined
    const isOurs = this.#added.get(parent)?.has(name) ?? false
    if (target.kind === 'directory') {
      this.#hideChildren(target)
      if (isOurs || target.children!.size > 0) return
    } else if (isOurs) return
    parent.children!.delete(name)
  }

  /** Hides what lower layers have in a directory; what this layer put there stays, with the directories on the way to it. */
  #hideChildren(directory: Inode): void {
    this.#lastParent = undefined
    if (this.#layers === 0) return
    const ours = this.#added.get(directory)
    for (const [name, child] of directory.children ?? []) {
      const isOurs = ours?.has(name) ?? false
      if (child.kind === 'directory') {
        this.#hideChildren(child)
        if (isOurs || child.children!.size > 0) continue
      } else if (isOurs) continue
      directory.children!.delete(name)
    }
  }

  /** The directory at a path, with symbolic links followed; undefined if there is none. */
  #existing(folder: readonly string[], source: ContentSource): Inode | undefined {
    return this.#walk(folder, source, false)
  }

  /** As `#existing`, but makes what is missing: some layers do not name the directories above their files. */
  #parent(folder: readonly string[], source: ContentSource): Inode {
    const path = folder.join('/')
    if (this.#lastParent?.path === path) return this.#lastParent.inode
    const inode = this.#walk(folder, source, true)!
    this.#lastParent = { path, inode }
    return inode
  }

  #walk(folder: readonly string[], source: ContentSource, make: boolean): Inode | undefined {
    const stack = [this.root]
    const pending = [...folder].reverse()
    let links = 0
    while (pending.length > 0) {
      const name = pending.pop()!
      const here = stack.at(-1)!
      if (name === '' || name === '.') continue
      if (name === '..') {
        // Only link targets have it here; above the root is the root.
        if (stack.length > 1) stack.pop()
        continue
      }
      let next = here.children!.get(name)
      if (next?.kind === 'symlink') {
        if (++links > MAX_SYMLINKS) {
          throw new ImageError(
            'BAD_TAR',
            `${source.name}: too many symbolic links on the way to '${textOf(folder.join('/'))}'`,
          )
        }
        if (next.target.startsWith('/')) stack.length = 1
        pending.push(...next.target.split('/').reverse())
        continue
      }
      if (!next) {
        if (!make) return undefined
        next = newInode('directory', 0o755)
        this.#put(here, name, next)
      } else if (next.kind !== 'directory') {
        if (!make) return undefined
        throw new ImageError(
          'BAD_TAR',
          `${source.name}: '${textOf(folder.join('/'))}' is needed as a directory, but '${textOf(name)}' is a ${next.kind}: the layers do not fit each other`,
        )
      }
      stack.push(next)
    }
    return stack.at(-1)!
  }
}

function setAttributes(inode: Inode, entry: TarEntry): void {
  inode.mode = entry.mode
  inode.uid = entry.uid
  inode.gid = entry.gid
  inode.mtime = entry.mtime
  inode.mtimeNs = entry.mtimeNs
  inode.xattrs = entry.xattrs
}

const badEntry = (entry: TarEntry, source: ContentSource, what: string): ImageError =>
  new ImageError(
    'BAD_TAR',
    `${source.name}: '${textOf(entry.path)}' is ${what}: the layer is damaged; have it made again`,
  )

/** The parts of an entry's path. Leading slashes and `.` mean nothing; `..` is refused. */
function splitPath(path: string, source: ContentSource): { folder: string[]; name: string } {
  const parts: string[] = []
  for (const part of path.split('/')) {
    if (part === '' || part === '.') continue
    if (part === '..') {
      throw new ImageError(
        'TRAVERSAL',
        `${source.name}: the path '${textOf(path)}' leaves the root: do not trust this image`,
      )
    }
    if (part.length > MAX_NAME || part.includes('\0')) {
      throw new ImageError(
        'UNSUPPORTED',
        `${source.name}: the name '${textOf(part).slice(0, 60)}...' cannot be in a file system`,
      )
    }
    parts.push(part)
  }
  const name = parts.pop() ?? ''
  return { folder: parts, name }
}
