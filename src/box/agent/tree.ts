/**
 * Trees of files between the host and the guest: the agent's stream of entries (guest/init/tree.c describes it) to and
 * from host directories and tar archives.
 *
 * What comes from a guest is hostile: a path that leaves the target, or a symbolic link on the way to it, is refused.
 */
import { constants, createReadStream, type Stats } from 'node:fs'
import { chmod, link, lstat, lutimes, mkdir, open, readdir, readlink, rm, symlink, utimes } from 'node:fs/promises'
import { basename, dirname, join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { finished } from 'node:stream/promises'
import { extract, type Header, pack } from 'tar-stream'
import type { AgentClient } from './client.ts'
import { AgentError } from './errors.ts'
import { settled } from './files.ts'
import { Frame, PayloadReader, PayloadWriter } from './protocol.ts'

type EntryType = 'd' | 'f' | 'l' | 'h' | 'c' | 'b' | 'p' | 's'

export interface TreeEntry {
  readonly type: EntryType
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly size: number
  readonly seconds: number
  readonly nanoseconds: number
  readonly major: number
  readonly minor: number
  /** Relative to the root of the tree; '' is the root itself. */
  readonly path: string
  /** Target of a symbolic or hard link. */
  readonly link: string
}

const ENTRY_FIXED_SIZE = 40
const PATH_LIMIT = 4096

function encodeEntry(entry: TreeEntry): Buffer {
  return new PayloadWriter()
    .bytes(Buffer.from(entry.type))
    .u32(entry.mode)
    .u32(entry.uid)
    .u32(entry.gid)
    .u64(BigInt(entry.size))
    .u64(BigInt.asUintN(64, BigInt(entry.seconds)))
    .u32(entry.nanoseconds)
    .u32(entry.major)
    .u32(entry.minor)
    .string(entry.path)
    .string(entry.link)
    .finish()
}

/** Takes exact numbers of bytes out of a stream. */
class ByteSource {
  readonly #iterator: AsyncIterator<Buffer>
  #rest: Buffer = Buffer.alloc(0)

  constructor(stream: Readable) {
    this.#iterator = stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>
  }

  /** Up to `limit` bytes, at least one. */
  async some(limit: number): Promise<Buffer> {
    if (this.#rest.length === 0) {
      const next = await this.#iterator.next()
      if (next.done) throw new AgentError('EPROTO', 'the guest ended a tree of files before its end')
      this.#rest = next.value
    }
    const part = this.#rest.subarray(0, limit)
    this.#rest = this.#rest.subarray(part.length)
    return part
  }

  async exactly(size: number): Promise<Buffer> {
    const parts: Buffer[] = []
    for (let left = size; left > 0; ) {
      const part = await this.some(left)
      parts.push(part)
      left -= part.length
    }
    return parts.length === 1 ? parts[0]! : Buffer.concat(parts)
  }
}

async function readText(source: ByteSource): Promise<string> {
  const length = (await source.exactly(4)).readUInt32LE()
  if (length >= PATH_LIMIT) throw new AgentError('EPROTO', 'the guest sent a path that is too long')
  return length === 0 ? '' : (await source.exactly(length)).toString()
}

async function readEntry(source: ByteSource): Promise<TreeEntry | null> {
  const type = String.fromCharCode((await source.exactly(1))[0]!)
  if (type === '\0') return null
  if (!'dflhcbps'.includes(type)) throw new AgentError('EPROTO', 'the guest sent an entry of an unknown kind')
  const fixed = new PayloadReader(await source.exactly(ENTRY_FIXED_SIZE))
  const [mode, uid, gid] = [fixed.u32(), fixed.u32(), fixed.u32()]
  const size = fixed.number()
  const seconds = Number(BigInt.asIntN(64, fixed.u64()))
  const [nanoseconds, major, minor] = [fixed.u32(), fixed.u32(), fixed.u32()]
  const path = await readText(source)
  const link = await readText(source)
  return { type: type as EntryType, mode, uid, gid, size, seconds, nanoseconds, major, minor, path, link }
}

async function send(target: Writable, chunk: Uint8Array): Promise<void> {
  if (target.write(chunk)) return
  await new Promise<void>(resolve => {
    const go = (): void => {
      target.off('drain', go)
      target.off('close', go)
      resolve()
    }
    target.once('drain', go)
    target.once('close', go)
  })
}

function entryOf(path: string, stats: Stats, link: string): TreeEntry | null {
  const type = stats.isDirectory()
    ? 'd'
    : stats.isFile()
      ? 'f'
      : stats.isSymbolicLink()
        ? 'l'
        : stats.isFIFO()
          ? 'p'
          : null
  if (type === null) return null
  const seconds = Math.floor(stats.mtimeMs / 1000)
  return {
    type,
    mode: stats.mode & 0o7777,
    // Numbers of this host mean nothing in the guest: what is copied in belongs to root, as `docker cp` has it.
    uid: 0,
    gid: 0,
    size: type === 'f' ? stats.size : 0,
    seconds,
    nanoseconds: Math.floor((stats.mtimeMs - seconds * 1000) * 1e6),
    major: 0,
    minor: 0,
    path,
    link,
  }
}

async function sendTree(target: Writable, hostPath: string, path: string): Promise<void> {
  const stats = await lstat(hostPath)
  const entry = entryOf(path, stats, stats.isSymbolicLink() ? await readlink(hostPath) : '')
  if (entry === null) return
  await send(target, encodeEntry(entry))
  if (entry.type === 'f' && entry.size > 0) {
    let left = entry.size
    for await (const chunk of createReadStream(hostPath, { end: entry.size - 1, highWaterMark: 256 * 1024 })) {
      left -= (chunk as Buffer).length
      await send(target, chunk as Buffer)
    }
    if (left > 0) throw new AgentError('EIO', `${hostPath} became shorter while it was copied: try again`)
  }
  if (entry.type !== 'd') return
  for (const name of (await readdir(hostPath)).sort()) {
    await sendTree(target, join(hostPath, name), path === '' ? name : `${path}/${name}`)
  }
  // Once more, because its contents changed its time.
  await send(target, encodeEntry(entry))
}

/** Runs a TREE_IN request whose input `produce` writes. */
async function treeIn(
  client: AgentClient,
  guestFolder: string,
  produce: (target: Writable) => Promise<void>,
): Promise<void> {
  const process = client.process(Frame.TREE_IN, new PayloadWriter().string(guestFolder).finish())
  process.stdout.resume()
  const done = settled(process, guestFolder)
  done.catch(() => {})
  try {
    await produce(process.stdin)
    await send(process.stdin, Buffer.alloc(1))
    process.stdin.end()
  } catch (error) {
    process.close()
    throw error
  }
  await done
}

/**
 * Copies a file or directory of the host into the guest, as `cp -a` would: into `guestPath` when it ends in a slash or
 * is a directory there, else to that very name.
 */
export async function copyIn(
  client: AgentClient,
  hostPath: string,
  guestPath: string,
  isDirectory: boolean,
): Promise<void> {
  await lstat(hostPath)
  const target = isDirectory ? join(guestPath, basename(hostPath)) : guestPath
  await treeIn(client, dirname(target), stream => sendTree(stream, hostPath, basename(target)))
}

/** Makes sure that `path` stays below the target and that no symbolic link is on the way. */
async function safeTarget(root: string, path: string): Promise<string> {
  if (path === '') return root
  const parts = path.split('/')
  if (parts.some(part => part === '' || part === '.' || part === '..')) {
    throw new AgentError('EPROTO', `the guest sent a path that leaves the target: '${path}'`)
  }
  let at = root
  for (const part of parts.slice(0, -1)) {
    at = join(at, part)
    const stats = await lstat(at).catch(() => null)
    if (!stats?.isDirectory())
      throw new AgentError('EPROTO', `the guest sent an entry below something that is no directory: '${path}'`)
  }
  return join(root, path)
}

async function receiveFile(source: ByteSource, entry: TreeEntry, path: string): Promise<void> {
  await rm(path, { force: true })
  // O_EXCL does not follow a link that appeared meanwhile.
  const file = await open(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, entry.mode & 0o777)
  try {
    for (let left = entry.size; left > 0; ) {
      const part = await source.some(left)
      await file.writeFile(part)
      left -= part.length
    }
    await file.chmod(entry.mode & 0o777)
    await file.utimes(entry.seconds, entry.seconds)
  } finally {
    await file.close()
  }
}

/**
 * Copies a file or directory of the guest out to `hostPath`. Files and directories keep their permission bits (without
 * set-id bits) and times, and belong to the caller; devices, sockets and fifos are left out.
 */
export async function copyOut(client: AgentClient, guestPath: string, hostPath: string): Promise<void> {
  const existing = await lstat(hostPath).catch(() => null)
  const root = existing?.isDirectory() ? join(hostPath, basename(guestPath)) : hostPath
  const process = client.process(Frame.TREE_OUT, new PayloadWriter().string(guestPath).finish())
  const done = settled(process, guestPath)
  done.catch(() => {})
  const source = new ByteSource(process.stdout)
  const directories: [path: string, entry: TreeEntry][] = []
  const files = new Map<string, string>()
  try {
    for (;;) {
      const entry = await readEntry(source)
      if (entry === null) break
      const path = await safeTarget(root, entry.path)
      if (entry.type === 'd') {
        await mkdir(path, { mode: (entry.mode & 0o777) | 0o700 }).catch(async (error: NodeJS.ErrnoException) => {
          if (error.code !== 'EEXIST' || !(await lstat(path)).isDirectory()) throw error
        })
        directories.push([path, entry])
      } else if (entry.type === 'f') {
        await receiveFile(source, entry, path)
        files.set(entry.path, path)
      } else if (entry.type === 'l') {
        await rm(path, { force: true })
        await symlink(entry.link, path)
        await lutimes(path, entry.seconds, entry.seconds)
      } else if (entry.type === 'h') {
        const first = files.get(entry.link)
        if (first === undefined) continue
        await rm(path, { force: true })
        await link(first, path)
      }
    }
  } catch (error) {
    process.close()
    throw error
  }
  // At the end, because their contents change their times, and need not be writable.
  for (const [path, { mode, seconds }] of directories.reverse()) {
    await chmod(path, mode & 0o777)
    await utimes(path, seconds, seconds)
  }
  await done
}

const TAR_TYPES: Readonly<Partial<Record<EntryType, Header['type']>>> = {
  d: 'directory',
  f: 'file',
  l: 'symlink',
  h: 'link',
  c: 'character-device',
  b: 'block-device',
  p: 'fifo',
}

/** The tree at `guestPath` as a tar archive. */
export function tarOut(client: AgentClient, guestPath: string): { stream: Readable; done: Promise<void> } {
  const archive = pack()
  const process = client.process(Frame.TREE_OUT, new PayloadWriter().string(guestPath).finish())
  const ended = settled(process, guestPath)
  ended.catch(() => {})
  const top = basename(guestPath) || '.'
  const convert = async (): Promise<void> => {
    const source = new ByteSource(process.stdout)
    for (let entry = await readEntry(source); entry !== null; entry = await readEntry(source)) {
      const type = TAR_TYPES[entry.type]
      if (!type) continue
      // tar-stream's streams behave as Node's do; only their types differ.
      const item = archive.entry({
        name: entry.path === '' ? top : `${top}/${entry.path}`,
        type,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        size: entry.size,
        mtime: new Date(entry.seconds * 1000),
        devmajor: entry.major,
        devminor: entry.minor,
        ...(entry.type === 'h'
          ? { linkname: `${top}/${entry.link}` }
          : entry.type === 'l'
            ? { linkname: entry.link }
            : {}),
      }) as unknown as Writable
      for (let left = entry.size; left > 0; ) {
        const part = await source.some(left)
        left -= part.length
        await send(item, part)
      }
      item.end()
      await finished(item)
    }
    await ended
    archive.finalize()
  }
  const done = convert().catch((error: Error) => {
    archive.destroy(error)
    process.close()
    throw error
  })
  done.catch(() => {})
  return { stream: archive as unknown as Readable, done }
}

/** Unpacks a tar archive below `guestFolder`, with the archive's owners. */
export async function tarIn(client: AgentClient, archive: Readable, guestFolder: string): Promise<void> {
  const types = new Map(Object.entries(TAR_TYPES).map(([ours, theirs]) => [theirs, ours as EntryType]))
  types.set('contiguous-file', 'f')
  await treeIn(client, guestFolder, async target => {
    const reader = extract()
    archive.on('error', (error: Error) => reader.destroy(error))
    archive.pipe(reader)
    const directories: Buffer[] = []
    for await (const item of reader) {
      const { header } = item
      const type = types.get(header.type)
      const path = header.name.replace(/^(\.?\/)+/, '').replace(/\/+$/, '')
      if (!type || path === '.') {
        item.resume()
        continue
      }
      const link = header.linkname ?? ''
      const entry: TreeEntry = {
        type,
        mode: (header.mode ?? 0o644) & 0o7777,
        uid: header.uid ?? 0,
        gid: header.gid ?? 0,
        size: type === 'f' ? (header.size ?? 0) : 0,
        seconds: Math.floor((header.mtime?.getTime() ?? 0) / 1000),
        nanoseconds: 0,
        major: header.devmajor ?? 0,
        minor: header.devminor ?? 0,
        path,
        link: type === 'h' ? link.replace(/^(\.?\/)+/, '') : link,
      }
      const encoded = encodeEntry(entry)
      if (type === 'd') directories.push(encoded)
      await send(target, encoded)
      for await (const chunk of item) if (type === 'f') await send(target, chunk as Buffer)
    }
    // Once more, because their contents changed their times.
    for (const directory of directories.reverse()) await send(target, directory)
  })
}
