/**
 * Writes a tree as one ext4 image, without root and without mkfs: a sparse file, forwards, with a few MiB of buffers whatever
 * the size of its files. The same tree and identity give the same bytes.
 */
import { createHash } from 'node:crypto'
import { closeSync, openSync, rmSync } from 'node:fs'
import { setImmediate } from 'node:timers/promises'
import { ImageError, rethrowWrite } from '../errors.ts'
import { bytesOf, type FileContent, type Inode, newInode, type StoredContent, textOf } from '../tree/inode.ts'
import { crc32c } from './crc32c.ts'
import { DirectoryEncoder, type DirectoryEntry, directoryBlocksBound } from './directory.ts'
import { ExtentList, extentTreeBlocks } from './extents.ts'
import { type Geometry, planGeometry } from './geometry.ts'
import { BlockStream, finishFile, readContent } from './image-file.ts'
import { encodeDevice, encodeInode, type InodeFields, inodeSeed } from './inode.ts'
import {
  BLOCK,
  blocksFor,
  FIRST_FREE_INO,
  FLAG_EXTENTS,
  FLAG_INDEX,
  INO_JOURNAL,
  INO_LOST_FOUND,
  INO_RESIZE,
  INO_ROOT,
  INODE_SIZE,
  JOURNAL_BLOCKS,
  MAX_EXTENT,
  MAX_FILE_BYTES,
  MAX_LINKS,
} from './layout.ts'
import { journalSuperblock, writeResizeInode } from './special-inodes.ts'
import { type Identity, writeGroups } from './superblock.ts'
import { encodeAttributes, needsAttributeBlock, sealAttributeBlock } from './xattr.ts'

/** Runs of zeros of this size (and aligned to it) become holes. */
const PIECE = 128 * 1024
const ZEROS = Buffer.alloc(PIECE)
/** Longest target that is kept in the inode. */
const FAST_SYMLINK = 59
/** Files up to this size are copied without a rest. */
const SMALL = 1 << 20
/** Between two rests for the event loop. */
const SLICE_MS = 12
const REST_BYTES = 16 << 20

/** How a file system is made. */
export interface Ext4Options {
  /** What the UUID and the hash seed are derived from; the chain id of an image, for example. */
  readonly identity: string
  /** The file system is at least so large; the file stays sparse. */
  readonly minimumBytes?: number
  /** Fails with TOO_LARGE when the tree needs a larger file system. */
  readonly maximumBytes?: number
  readonly label?: string
  /** Called now and then with the bytes of file content that are written. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
}

/** A file system that was made. */
export interface Ext4Result {
  /** Size of the file system, and of the (sparse) file. */
  readonly bytes: number
  readonly inodes: number
  readonly contentBytes: number
  readonly uuid: string
}

/** Writes `root` to a new file at `path`; on failure no file is left. */
export async function writeExt4(path: string, root: Inode, options: Ext4Options): Promise<Ext4Result> {
  const fd = openSync(path, 'wx', 0o644)
  try {
    const writer = new Ext4Writer(fd, root, options)
    await writer.write()
    return writer.result()
  } catch (error) {
    rmSync(path, { force: true })
    rethrowWrite(error, path)
  } finally {
    closeSync(fd)
  }
}

/** One inode of the tree with the number it got. */
interface Numbered {
  readonly inode: Inode
  readonly ino: number
  /** Of the directory that it was found in first. */
  readonly parent: number
  links: number
}

class Ext4Writer {
  readonly #fd: number
  readonly #options: Ext4Options
  readonly #identity: Identity
  readonly #seed: number
  /** In order of their numbers, which is the order they are written in. */
  readonly #numbered: Numbered[] = []
  readonly #byInode = new Map<Inode, Numbered>()
  readonly #geometry: Geometry
  readonly #data: BlockStream
  readonly #table: BlockStream
  readonly #directories: DirectoryEncoder
  readonly #extents = new ExtentList()
  readonly #directoryCounts: Uint32Array
  #contentBytes = 0
  #doneBytes = 0

  constructor(fd: number, root: Inode, options: Ext4Options) {
    this.#fd = fd
    this.#options = options
    const digest = createHash('sha256').update(`vitrine ext4 1\n${options.identity}`).digest()
    const uuid = digest.subarray(0, 16)
    // RFC 9562, version 8: made by a rule of our own.
    uuid[6] = (uuid[6]! & 0x0f) | 0x80
    uuid[8] = (uuid[8]! & 0x3f) | 0x80
    const hashSeed = digest.subarray(16, 32)
    this.#identity = {
      uuid,
      hashSeed,
      time: Math.max(0, Math.min(root.mtime, 2 ** 31 - 1)),
      label: options.label ?? '',
    }
    this.#seed = crc32c(~0, uuid)
    const seedView = new DataView(hashSeed.buffer, hashSeed.byteOffset, 16)
    this.#directories = new DirectoryEncoder(Uint32Array.from([0, 4, 8, 12], at => seedView.getUint32(at, true)))
    const blocks = this.#number(root)
    this.#geometry = planGeometry(blocks, this.#numbered.length + FIRST_FREE_INO, options.minimumBytes ?? 0)
    const bytes = this.#geometry.blocks * BLOCK
    if (options.maximumBytes !== undefined && bytes > options.maximumBytes) {
      throw new ImageError(
        'TOO_LARGE',
        `the image needs a disk of ${Math.ceil(bytes / 2 ** 20)} MiB, more than the ${Math.floor(options.maximumBytes / 2 ** 20)} MiB allowed: ask for a larger disk`,
      )
    }
    this.#directoryCounts = new Uint32Array(this.#geometry.groups)
    this.#data = new BlockStream(fd)
    this.#table = new BlockStream(fd)
  }

  result(): Ext4Result {
    const hex = Buffer.from(this.#identity.uuid).toString('hex')
    return {
      bytes: this.#geometry.blocks * BLOCK,
      inodes: this.#numbered.length,
      contentBytes: this.#contentBytes,
      uuid: hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5'),
    }
  }

  /** Numbers all inodes in the order of a walk with sorted names; returns a bound of the blocks that they need. */
  #number(root: Inode): number {
    const add = (inode: Inode, ino: number, parent: number): Numbered => {
      const numbered = { inode, ino, parent, links: 0 }
      this.#numbered.push(numbered)
      this.#byInode.set(inode, numbered)
      return numbered
    }
    add(root, INO_ROOT, INO_ROOT)
    const children = root.children!
    const found = children.get('lost+found')
    const lostFound = found?.kind === 'directory' ? found : newInode('directory', 0o700)
    if (lostFound !== found) {
      // The name belongs to e2fsck: whatever else an image has there gives way.
      lostFound.mtime = root.mtime
      children.set('lost+found', lostFound)
    }
    add(lostFound, INO_LOST_FOUND, INO_ROOT)
    let blocks = JOURNAL_BLOCKS + 1
    let next = FIRST_FREE_INO
    // The array grows while it is walked: children come after their directory.
    const walk = [root]
    while (walk.length > 0) {
      const directory = walk.pop()!
      const self = this.#byInode.get(directory)!
      self.links += 2
      const names = [...directory.children!.keys()].sort()
      const below: Inode[] = []
      for (const name of names) {
        const child = directory.children!.get(name)!
        let numbered = this.#byInode.get(child)
        if (!numbered) {
          numbered = add(child, next++, self.ino)
          if (child.kind !== 'directory') blocks += this.#blocksBound(child)
        }
        if (child.kind === 'directory') {
          self.links++
          below.push(child)
        } else numbered.links++
      }
      for (let i = below.length - 1; i >= 0; i--) walk.push(below[i]!)
      const own = directoryBlocksBound(names)
      blocks += own + extentTreeBlocks(own) + (directory.xattrs && needsAttributeBlock(directory.xattrs) ? 1 : 0)
    }
    if (this.#numbered.length > 2 ** 32 - 1024) throw new ImageError('UNSUPPORTED', 'more inodes than ext4 can number')
    return blocks
  }

  #blocksBound(inode: Inode): number {
    let blocks = inode.xattrs && needsAttributeBlock(inode.xattrs) ? 1 : 0
    if (inode.kind === 'symlink') return blocks + 1
    if (inode.kind !== 'file') return blocks
    if (inode.size > MAX_FILE_BYTES) {
      throw new ImageError('UNSUPPORTED', `a file of ${inode.size} bytes is larger than ext4 can hold`)
    }
    this.#contentBytes += inode.size
    const map = inode.content && 'map' in inode.content ? inode.content.map : undefined
    if (map) {
      for (let i = 1; i < map.length; i += 3) blocks += blocksFor(map[i]!) + 1
      return blocks + extentTreeBlocks(blocks)
    }
    const own = blocksFor(inode.size)
    // Holes and group ends can split a file; in the worst case every other piece of 128 KiB is a hole.
    return blocks + own + extentTreeBlocks(Math.ceil(own / 32) + Math.ceil(own / MAX_EXTENT) + 8)
  }

  async write(): Promise<void> {
    const { journalBlock, journalBytes } = this.#writeSpecial()
    let restAt = Date.now() + SLICE_MS
    let count = 0
    for (const numbered of this.#numbered) {
      const { inode } = numbered
      this.#extents.clear()
      if (inode.kind === 'file' && inode.content && inode.size > 0) {
        const copying = this.#copyContent(inode.content, inode.size)
        if (copying) await copying
      }
      this.#writeInode(numbered)
      if (++count % 64 === 0 && Date.now() >= restAt) {
        await this.#rest()
        restAt = Date.now() + SLICE_MS
      }
    }
    this.#table.flush()
    this.#data.flush()
    const lastIno = this.#numbered.length + FIRST_FREE_INO - 3
    const totals = { lastIno, directories: this.#directoryCounts, journalBlock, journalBytes }
    writeGroups(this.#data, this.#geometry, this.#identity, totals, this.#seed)
    this.#data.flush()
    await finishFile(this.#fd, this.#geometry.blocks * BLOCK)
    await this.#rest()
  }

  async #rest(): Promise<void> {
    this.#options.onProgress?.(this.#doneBytes, this.#contentBytes)
    await setImmediate()
  }

  /** The journal and the resize inode, and zeros for the other reserved ones. */
  #writeSpecial(): { journalBlock: Uint8Array; journalBytes: number } {
    const owner = newInode('file', 0o600)
    owner.mtime = this.#identity.time
    const first = this.#table.reserve(this.#geometry.inodeTableOf(0) * BLOCK, BLOCK)
    first.fill(0)
    const resize = writeResizeInode(this.#geometry, this.#allocate(), this.#writeBlock)
    const common = { links: 1, attributeBlock: 0, inlineAttributes: undefined }
    encodeInode(
      first,
      (INO_RESIZE - 1) * INODE_SIZE,
      owner,
      { ...common, ...resize, flags: 0 },
      inodeSeed(this.#seed, INO_RESIZE),
    )
    this.#extents.clear()
    let done = 0
    while (done < JOURNAL_BLOCKS) {
      const run = this.#geometry.take(JOURNAL_BLOCKS - done)
      if (done === 0) this.#data.writeBlock(run.start, journalSuperblock())
      this.#extents.add(done, run.start, run.count)
      done += run.count
    }
    const seed = inodeSeed(this.#seed, INO_JOURNAL)
    const iBlock = new Uint8Array(60)
    const blocks = JOURNAL_BLOCKS + this.#extents.encode(iBlock, seed, this.#allocate, this.#writeBlock)
    const size = JOURNAL_BLOCKS * BLOCK
    const fields = { ...common, iBlock, size, blocks, flags: FLAG_EXTENTS }
    encodeInode(first, (INO_JOURNAL - 1) * INODE_SIZE, owner, fields, seed)
    this.#firstTableBlock = first
    return { journalBlock: iBlock, journalBytes: size }
  }

  /** The table block with inodes 1 to 16, which is not filled in order. */
  #firstTableBlock: Buffer = Buffer.alloc(0)
  #tableBlock: Buffer = Buffer.alloc(0)

  readonly #allocate = (): number => this.#geometry.take(1).start
  readonly #writeBlock = (block: number, bytes: Uint8Array): void => this.#data.writeBlock(block, bytes)

  /** Where an inode goes: in the buffered table block, which moves forwards with the numbers. */
  #slot(ino: number): [table: Buffer, at: number] {
    const perBlock = BLOCK / INODE_SIZE
    const index = ino - 1
    const at = (index % perBlock) * INODE_SIZE
    if (index < perBlock) return [this.#firstTableBlock, at]
    if (at === 0) {
      const group = Math.floor(index / this.#geometry.inodesPerGroup)
      const within = (index % this.#geometry.inodesPerGroup) / perBlock
      this.#tableBlock = this.#table.reserve((this.#geometry.inodeTableOf(group) + within) * BLOCK, BLOCK)
      this.#tableBlock.fill(0)
    }
    return [this.#tableBlock, at]
  }

  /** Everything of an inode but the content of a file, whose extents are already there. */
  #writeInode({ inode, ino, parent, links }: Numbered): void {
    const seed = inodeSeed(this.#seed, ino)
    const iBlock = new Uint8Array(60)
    const fields = { links, size: 0, blocks: 0, flags: 0, iBlock, attributeBlock: 0, inlineAttributes: undefined }
    const out: { -readonly [K in keyof InodeFields]: InodeFields[K] } = fields
    if (inode.xattrs && inode.xattrs.size > 0) {
      const { inInode, block } = encodeAttributes(inode.xattrs, `inode ${ino}`)
      out.inlineAttributes = inInode
      if (block) {
        out.attributeBlock = this.#allocate()
        sealAttributeBlock(block, out.attributeBlock, this.#seed)
        this.#data.writeBlock(out.attributeBlock, block)
        out.blocks++
      }
    }
    switch (inode.kind) {
      case 'directory': {
        if (links > MAX_LINKS) out.links = 1
        this.#directoryCounts[Math.floor((ino - 1) / this.#geometry.inodesPerGroup)]!++
        const { blocks, indexed } = this.#directories.encode(ino, parent, this.#entriesOf(inode), seed)
        this.#writeBytes(blocks)
        out.size = blocks.length
        if (indexed) out.flags |= FLAG_INDEX
        break
      }
      case 'file':
        if (inode.size > 0 && !inode.content) throw new Error('a file of the tree has a size and no content')
        out.size = inode.size
        break
      case 'symlink': {
        const target = bytesOf(inode.target)
        if (target.length >= BLOCK) {
          throw new ImageError(
            'UNSUPPORTED',
            `a link target of ${target.length} bytes: 4095 is the most (${textOf(inode.target).slice(0, 60)}...)`,
          )
        }
        out.size = target.length
        if (target.length > FAST_SYMLINK) this.#writeBytes(target)
        else iBlock.set(target)
        break
      }
      case 'character':
      case 'block':
        encodeDevice(iBlock, inode.major, inode.minor)
        break
    }
    if (links > MAX_LINKS && inode.kind !== 'directory') {
      throw new ImageError('UNSUPPORTED', `a file with ${links} hard links: ext4 allows ${MAX_LINKS}`)
    }
    const mapped =
      inode.kind === 'directory' || inode.kind === 'file' || (inode.kind === 'symlink' && out.size > FAST_SYMLINK)
    if (mapped) {
      out.flags |= FLAG_EXTENTS
      out.blocks += this.#extents.blocks + this.#extents.encode(iBlock, seed, this.#allocate, this.#writeBlock)
    }
    const [table, at] = this.#slot(ino)
    encodeInode(table, at, inode, out, seed)
  }

  #entriesOf(directory: Inode): DirectoryEntry[] {
    const entries: DirectoryEntry[] = []
    for (const name of [...directory.children!.keys()].sort()) {
      const child = directory.children!.get(name)!
      entries.push({ name, ino: this.#byInode.get(child)!.ino, kind: child.kind })
    }
    return entries
  }

  /** Writes bytes as the current file's next blocks, all of them. */
  #writeBytes(bytes: Uint8Array): void {
    const count = blocksFor(bytes.length)
    for (let done = 0; done < count; ) {
      const run = this.#geometry.take(count - done)
      this.#extents.add(done, run.start, run.count)
      for (let i = 0; i < run.count; i++, done++) {
        this.#data.writeBlock(run.start + i, bytes.subarray(done * BLOCK, (done + 1) * BLOCK))
      }
    }
  }

  /** Small files are done at once; a promise comes back for large ones, which rest in between. */
  #copyContent(content: FileContent, size: number): Promise<void> | undefined {
    if ('bytes' in content) {
      this.#writeBytes(content.bytes)
      return undefined
    }
    if (size > SMALL || content.map) return this.#copyLarge(content, size)
    const fd = content.source.acquire()
    try {
      for (let done = 0; done < size; ) done += this.#copyPiece(fd, content, done, size - done, content.offset + done)
    } finally {
      content.source.release(fd)
    }
    return undefined
  }

  async #copyLarge(content: StoredContent, size: number): Promise<void> {
    const fd = content.source.acquire()
    try {
      if (!content.map) await this.#copyRange(fd, content, 0, size, content.offset)
      else await this.#copySparse(fd, content, content.map)
    } finally {
      content.source.release(fd)
    }
  }

  /** Segments that share a block are put together in it. */
  async #copySparse(fd: number, content: StoredContent, map: Float64Array): Promise<void> {
    const { source, offset } = content
    const edge = Buffer.alloc(BLOCK)
    let edgeBlock = -1
    const flushEdge = (): void => {
      if (edgeBlock < 0) return
      const run = this.#geometry.take(1)
      this.#extents.add(edgeBlock, run.start, 1)
      this.#data.writeBlock(run.start, edge)
      edgeBlock = -1
    }
    for (let i = 0; i < map.length; i += 3) {
      let at = map[i]!
      const end = at + map[i + 1]!
      let from = offset + map[i + 2]!
      while (at < end) {
        const block = Math.floor(at / BLOCK)
        const whole = Math.floor((end - at) / BLOCK) * BLOCK
        if (at % BLOCK === 0 && whole > 0) {
          flushEdge()
          await this.#copyRange(fd, content, at, whole, from)
          at += whole
          from += whole
          continue
        }
        if (block !== edgeBlock) {
          flushEdge()
          edge.fill(0)
          edgeBlock = block
        }
        const part = Math.min(end, (block + 1) * BLOCK) - at
        readContent(fd, edge.subarray(at % BLOCK, (at % BLOCK) + part), from, source)
        at += part
        from += part
      }
    }
    flushEdge()
  }

  async #copyRange(fd: number, content: StoredContent, at: number, length: number, from: number): Promise<void> {
    let restAt = this.#doneBytes + REST_BYTES
    for (let done = 0; done < length; ) {
      done += this.#copyPiece(fd, content, at + done, length - done, from + done)
      if (this.#doneBytes >= restAt) {
        await this.#rest()
        restAt = this.#doneBytes + REST_BYTES
      }
    }
  }

  /**
   * Copies up to 128 KiB to the file's blocks from byte `at` on (a block's start); if they are all zeros they stay a hole.
   * Returns how many bytes that were.
   */
  #copyPiece(fd: number, { source }: StoredContent, at: number, length: number, from: number): number {
    const want = Math.min(PIECE, length)
    // Read to where the blocks would go; the blocks are taken only when there is something in them.
    const bytes = Math.min(want, this.#geometry.room(blocksFor(want)) * BLOCK)
    const blocks = blocksFor(bytes)
    const buffer = this.#data.reserve(this.#geometry.cursor * BLOCK, blocks * BLOCK)
    readContent(fd, bytes === buffer.length ? buffer : buffer.subarray(0, bytes), from, source)
    if (bytes < buffer.length) buffer.fill(0, bytes)
    if (isZero(buffer)) this.#data.unreserve(buffer.length)
    else {
      const run = this.#geometry.take(blocks)
      this.#extents.add(Math.floor(at / BLOCK), run.start, run.count)
    }
    this.#doneBytes += bytes
    return bytes
  }
}

/** Most pieces show in their first bytes that they are not; the rest is one memcmp. */
function isZero(buffer: Buffer): boolean {
  return (
    buffer[0] === 0 && buffer.readUInt32LE(buffer.length - 4) === 0 && buffer.compare(ZEROS, 0, buffer.length) === 0
  )
}
