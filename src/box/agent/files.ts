/** The guest's files, through its agent. */
import type { Readable, Writable } from 'node:stream'
import type { AgentClient, AgentProcess } from './client.ts'
import { AgentError, errnoName } from './errors.ts'
import { EventKind, Frame, PayloadReader, PayloadWriter, WriteFlag } from './protocol.ts'

export type FileKind = 'file' | 'directory' | 'symlink' | 'character' | 'block' | 'fifo' | 'socket'

/** What `stat` tells of a file in the guest. */
export interface FileInfo {
  readonly kind: FileKind
  /** Permission bits. */
  readonly mode: number
  readonly uid: number
  readonly gid: number
  readonly size: number
  readonly modified: Date
  readonly links: number
  /** Where a symbolic link points. */
  readonly target?: string
}

/** A file as `list` shows it. */
export interface DirectoryEntry extends FileInfo {
  readonly name: string
}

/** A change that `watch` saw. */
export interface FileEvent {
  /** `overflow`: events were lost, look again. */
  readonly kind: 'created' | 'changed' | 'removed' | 'overflow'
  readonly path: string
}

/** By the file-type bits of st_mode, shifted down. */
const KINDS: Readonly<Record<number, FileKind>> = {
  1: 'fifo',
  2: 'character',
  4: 'directory',
  6: 'block',
  8: 'file',
  10: 'symlink',
  12: 'socket',
}

const EVENTS: Readonly<Record<number, FileEvent['kind']>> = {
  [EventKind.CREATED]: 'created',
  [EventKind.CHANGED]: 'changed',
  [EventKind.REMOVED]: 'removed',
  [EventKind.OVERFLOW]: 'overflow',
}

function readInfo(reader: PayloadReader): FileInfo {
  const mode = reader.u32()
  const uid = reader.u32()
  const gid = reader.u32()
  const size = reader.number()
  const seconds = reader.number()
  const nanoseconds = reader.u32()
  reader.u64() // inode
  const links = reader.u32()
  const target = reader.string()
  return {
    kind: KINDS[mode >> 12] ?? 'file',
    mode: mode & 0o7777,
    uid,
    gid,
    size,
    modified: new Date(seconds * 1000 + nanoseconds / 1e6),
    links,
    ...(target === '' ? {} : { target }),
  }
}

/** Waits for a streaming request to end; its exit status is an errno and its stderr the message. */
export async function settled(process: AgentProcess, subject: string): Promise<void> {
  const message: Buffer[] = []
  process.stderr.on('data', (chunk: Buffer) => message.push(chunk))
  try {
    const { exitCode, signal } = await process.exit
    const text = Buffer.concat(message).toString()
    if (exitCode !== 0) {
      const code = exitCode === null ? 'EIO' : errnoName(exitCode)
      throw new AgentError(code, text || `${subject}: ended by signal ${signal}`)
    }
    process.stdout.finish()
  } catch (error) {
    // Whoever uses the streams alone must not take them for complete.
    process.stdin.destroy(error as Error)
    process.stdout.destroy(error as Error)
    throw error
  }
}

/** Who looks at the stream alone hears of a failure there. */
function quiet(done: Promise<void>): Promise<void> {
  done.catch(() => {})
  return done
}

const ALL_BYTES = 0xffff_ffff_ffff_ffffn

export class AgentFiles {
  readonly #client: AgentClient

  constructor(client: AgentClient) {
    this.#client = client
  }

  async stat(path: string, options: { follow?: boolean } = {}): Promise<FileInfo> {
    const payload = new PayloadWriter()
      .string(path)
      .u32(options.follow === false ? 0 : 1)
      .finish()
    return readInfo(await this.#client.request(Frame.STAT, payload, path))
  }

  async exists(path: string): Promise<boolean> {
    try {
      await this.stat(path)
      return true
    } catch (error) {
      if (error instanceof AgentError && (error.code === 'ENOENT' || error.code === 'ENOTDIR')) return false
      throw error
    }
  }

  async list(path: string): Promise<DirectoryEntry[]> {
    const payload = new PayloadWriter().string(path).finish()
    const reader = await this.#client.request(Frame.LIST, payload, path).catch((error: unknown) => {
      if (!(error instanceof AgentError && error.code === 'E2BIG')) throw error
      return this.#listStream(payload, path)
    })
    const entries: DirectoryEntry[] = []
    while (reader.left > 0) entries.push({ name: reader.string(), ...readInfo(reader) })
    return entries.sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  /** A directory that is too large for one frame. */
  async #listStream(payload: Buffer, path: string): Promise<PayloadReader> {
    const process = this.#client.process(Frame.LIST_OUT, payload)
    const chunks: Buffer[] = []
    process.stdout.on('data', (chunk: Buffer) => chunks.push(chunk))
    await this.#ended(process, path)
    return new PayloadReader(Buffer.concat(chunks))
  }

  /** Creates a directory and, unless told otherwise, those above it. */
  async mkdir(path: string, options: { mode?: number; parents?: boolean } = {}): Promise<void> {
    const parents = options.parents === false ? 0 : 1
    const payload = new PayloadWriter()
      .string(path)
      .u32(options.mode ?? 0o755)
      .u32(parents)
      .finish()
    await this.#client.request(Frame.MKDIR, payload, path)
  }

  async rename(from: string, to: string): Promise<void> {
    await this.#client.request(Frame.RENAME, new PayloadWriter().string(from).string(to).finish(), `${from} -> ${to}`)
  }

  async remove(path: string, options: { recursive?: boolean } = {}): Promise<void> {
    const payload = new PayloadWriter()
      .string(path)
      .u32(options.recursive ? 1 : 0)
      .finish()
    await this.#client.request(Frame.REMOVE, payload, path)
  }

  async chmod(path: string, mode: number): Promise<void> {
    await this.#client.request(Frame.CHMOD, new PayloadWriter().string(path).u32(mode).finish(), path)
  }

  /** The whole file. */
  async read(path: string): Promise<Buffer> {
    const { stream, done } = this.readStream(path)
    const chunks: Buffer[] = []
    stream.on('data', (chunk: Buffer) => chunks.push(chunk))
    await done
    return Buffer.concat(chunks)
  }

  async readText(path: string): Promise<string> {
    return (await this.read(path)).toString('utf8')
  }

  /** The file, or a part of it, as a stream; `done` rejects when it cannot be read. */
  readStream(
    path: string,
    options: { offset?: number; length?: number } = {},
  ): { stream: Readable; done: Promise<void> } {
    const payload = new PayloadWriter()
      .string(path)
      .u64(BigInt(options.offset ?? 0))
      .u64(options.length === undefined ? ALL_BYTES : BigInt(options.length))
      .finish()
    const process = this.#client.process(Frame.READ_FILE, payload)
    return { stream: process.stdout, done: quiet(this.#ended(process, path)) }
  }

  /** Replaces a file in one step: a reader sees the old contents or the new. Missing directories are made. */
  async write(path: string, data: string | Uint8Array, options: WriteOptions = {}): Promise<void> {
    const { stream, done } = this.writeStream(path, options)
    stream.end(data)
    await done
  }

  /** The same from a stream; the file appears when the stream has ended and `done` resolves. */
  writeStream(path: string, options: WriteOptions = {}): { stream: Writable; done: Promise<void> } {
    const flags = (options.append ? WriteFlag.APPEND : 0) | (options.exclusive ? WriteFlag.EXCLUSIVE : 0)
    const payload = new PayloadWriter()
      .string(path)
      .u32(options.mode ?? 0)
      .u32(flags)
      .finish()
    const process = this.#client.process(Frame.WRITE_FILE, payload)
    process.stdout.resume()
    return { stream: process.stdin, done: quiet(settled(process, path)) }
  }

  /** Calls `onEvent` for every change below `path` until the returned function is called. */
  async watch(path: string, onEvent: (event: FileEvent) => void, options: WatchOptions = {}): Promise<() => void> {
    const watch = this.#client.watch(
      path,
      options.recursive ?? false,
      (kind, changed) => onEvent({ kind: EVENTS[kind] ?? 'changed', path: changed }),
      error => options.onEnd?.(error),
    )
    await watch.started
    return watch.close
  }

  /** Resolves when the process has ended well and its output has been taken. */
  async #ended(process: AgentProcess, subject: string): Promise<void> {
    const drained = new Promise<void>(resolve => process.stdout.once('close', resolve))
    await settled(process, subject)
    await drained
  }
}

/** What is watched, and who hears of the watch's own end. */
export interface WatchOptions {
  readonly recursive?: boolean
  /** The watch ended by itself: the box stopped, or the connection to it was lost. */
  readonly onEnd?: (error: Error) => void
}

/** How a file in the guest is written. */
export interface WriteOptions {
  /** Permission bits; an existing file keeps its own. */
  readonly mode?: number
  readonly append?: boolean
  /** Fail with EEXIST when the file is there. */
  readonly exclusive?: boolean
}
