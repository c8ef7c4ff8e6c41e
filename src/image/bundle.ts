/** A set of named files: a directory, or a tar of one. OCI layouts and `docker save` archives come as either. */
import { closeSync, existsSync, lstatSync, openSync, readFileSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { ImageError, rethrowWrite } from './errors.ts'
import { readFully } from './read-fully.ts'
import { byteString } from './tree/inode.ts'
import { type TarEntry, TarReader } from './tree/tar-reader.ts'

export interface Bundle extends Disposable {
  readonly name: string
  has(path: string): boolean
  /** A small file. */
  read(path: string, limit: number): Buffer
  /** A path on the disk with the content of a file; `target` is where to put it if it is not there already. */
  file(path: string, target: string): string
}

const missing = (name: string, path: string): ImageError =>
  new ImageError('CORRUPT', `${name} lacks the file ${path}: it is incomplete; make it again`)

const tooLarge = (name: string, path: string): ImageError =>
  new ImageError('CORRUPT', `${path} in ${name} is too large to be what its name says`)

/** Names come from documents inside: none may lead outside. */
function checkName(name: string, path: string): void {
  if (path.startsWith('/') || path.split('/').includes('..')) {
    throw new ImageError('TRAVERSAL', `${name} names the file '${path}', outside of itself: do not trust it`)
  }
}

export class DirectoryBundle implements Bundle {
  readonly name: string

  constructor(path: string) {
    this.name = path
  }

  has(path: string): boolean {
    checkName(this.name, path)
    return existsSync(join(this.name, path))
  }

  read(path: string, limit: number): Buffer {
    const full = this.file(path)
    if (statSync(full).size > limit) throw tooLarge(this.name, path)
    return readFileSync(full)
  }

  file(path: string): string {
    if (!this.has(path)) throw missing(this.name, path)
    const full = join(this.name, path)
    if (!lstatSync(full).isFile()) throw new ImageError('CORRUPT', `${full} is not a regular file`)
    return full
  }

  [Symbol.dispose](): void {}
}

export class TarBundle implements Bundle {
  readonly name: string
  readonly #fd: number
  readonly #entries = new Map<string, TarEntry>()

  /** `path` is an uncompressed tar. */
  constructor(path: string, name: string) {
    this.name = name
    this.#fd = openSync(path, 'r')
    try {
      for (const entry of new TarReader(this.#fd, name)) this.#entries.set(normal(entry.path), entry)
    } catch (error) {
      closeSync(this.#fd)
      throw error
    }
  }

  has(path: string): boolean {
    checkName(this.name, path)
    return this.#entries.has(byteString(path))
  }

  read(path: string, limit: number): Buffer {
    const entry = this.#find(path)
    if (entry.size > limit) throw tooLarge(this.name, path)
    const bytes = Buffer.alloc(entry.size)
    readFully(this.#fd, bytes, entry.offset)
    return bytes
  }

  file(path: string, target: string): string {
    const entry = this.#find(path)
    const out = openSync(target, 'wx', 0o600)
    try {
      const buffer = Buffer.alloc(1 << 20)
      for (let done = 0; done < entry.size; ) {
        const part = buffer.subarray(0, Math.min(buffer.length, entry.size - done))
        readFully(this.#fd, part, entry.offset + done)
        for (let at = 0; at < part.length; ) at += writeSync(out, part, at)
        done += part.length
      }
    } catch (error) {
      rethrowWrite(error, target)
    } finally {
      closeSync(out)
    }
    return target
  }

  /** Old `docker save` links a layer that it has written before. */
  #find(path: string): TarEntry {
    checkName(this.name, path)
    let at = byteString(path)
    for (let hops = 0; hops < 8; hops++) {
      const entry = this.#entries.get(at)
      if (!entry) break
      if (entry.kind === 'file' && !entry.map) return entry
      if (entry.kind !== 'symlink' && entry.kind !== 'link') break
      const from = entry.kind === 'symlink' ? at.slice(0, at.lastIndexOf('/') + 1) : ''
      at = normal(from + entry.linkPath)
    }
    throw missing(this.name, path)
  }

  [Symbol.dispose](): void {
    closeSync(this.#fd)
  }
}

/** A path with `.` and `..` worked out by its text alone. */
function normal(path: string): string {
  const parts: string[] = []
  for (const part of path.split('/')) {
    if (part === '..') parts.pop()
    else if (part !== '' && part !== '.') parts.push(part)
  }
  return parts.join('/')
}
