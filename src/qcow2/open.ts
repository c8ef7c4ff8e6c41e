/** Opening an image and its chain: locks, formats, loops, and where a backing file may be. */
import { constants, fstatSync, realpathSync } from 'node:fs'
import { dirname, isAbsolute, join, sep } from 'node:path'
import { HostError } from '../host/errors.ts'
import { openFd } from '../host/file.ts'
import type { BlockImage } from './block-image.ts'
import { DiskError } from './errors.ts'
import { type Header, readHeader } from './header.ts'
import { MAGIC } from './layout.ts'
import { lockImage } from './lock.ts'
import type { CacheSizes } from './metadata.ts'
import { Qcow2Image } from './qcow2-image.ts'
import { RawImage } from './raw-image.ts'
import { FileStorage } from './storage.ts'

/** The formats that can be opened. */
export type DiskFormat = 'raw' | 'qcow2'

/** How a disk is opened. */
export interface OpenOptions extends CacheSizes {
  /** Never guessed from the contents: a guest could write a QCOW2 header to its raw disk. See `probeFormat`. */
  readonly format: DiskFormat
  readonly readOnly?: boolean
  /**
   * Folders that backing files may be in, symbolic links followed. Default: the folder of the image itself. `any` only
   * for images that you made: a name in a hostile image could be any file of this host.
   */
  readonly backingFolders?: readonly string[] | 'any'
  /** Opens only this file; holes read as zeros. For looking at one layer. */
  readonly withoutBacking?: boolean
  /** False to leave out the lock: for inspecting a disk in use. Read-only then. */
  readonly lock?: boolean
}

const MAX_CHAIN = 1000
/** Read-only layers below the first share out less cache: a deep chain must stay small. */
const BASE_L2_CACHE = 1024 * 1024

/** `qcow2` or `raw`, by the magic number. Only for files whose writer you trust. */
export function probeFormat(path: string): DiskFormat {
  const storage = new FileStorage(openImageFd(path, false))
  try {
    const head = new Uint8Array(4)
    storage.read(head, 0)
    return new DataView(head.buffer).getUint32(0) === MAGIC ? 'qcow2' : 'raw'
  } finally {
    storage.close()
  }
}

/** Opens a disk and the files below it; the caller closes it. */
export function openDisk(path: string, options: OpenOptions & { readonly format: 'qcow2' }): Qcow2Image
export function openDisk(path: string, options: OpenOptions): BlockImage
export function openDisk(path: string, options: OpenOptions): BlockImage {
  if (options.lock === false && !options.readOnly) {
    throw new DiskError('INVALID_ARGUMENT', path, 'can only be opened read-only without its lock')
  }
  const folders = options.backingFolders === 'any' ? undefined : (options.backingFolders ?? [dirname(path)]).map(real)
  return openLayer(path, options, folders, new Set(), 0)
}

function openLayer(
  path: string,
  options: OpenOptions,
  folders: readonly string[] | undefined,
  seen: Set<string>,
  depth: number,
): BlockImage {
  const readOnly = options.readOnly ?? false
  const fd = openImageFd(path, !readOnly)
  const storage = new FileStorage(fd)
  let backing: BlockImage | undefined
  try {
    const { dev, ino } = fstatSync(fd)
    if (seen.has(`${dev}:${ino}`)) {
      throw new DiskError('BACKING_LOOP', path, 'is its own backing file, through the chain; rebase it')
    }
    seen.add(`${dev}:${ino}`)
    if (depth > MAX_CHAIN)
      throw new DiskError('BACKING_LOOP', path, `the backing chain is over ${MAX_CHAIN} files deep`)
    if (options.lock !== false) lockImage(fd, !readOnly, path)
    if (options.format === 'raw') return new RawImage(storage, path, { readOnly })
    const header = readHeader(storage, path)
    if (!options.withoutBacking) backing = openBacking(header, path, options, folders, seen, depth)
    return new Qcow2Image(storage, path, { ...options, backing, header })
  } catch (error) {
    storage.close()
    backing?.close()
    throw error
  }
}

function openBacking(
  { backingFile, backingFormat }: Header,
  path: string,
  options: OpenOptions,
  folders: readonly string[] | undefined,
  seen: Set<string>,
  depth: number,
): BlockImage | undefined {
  if (backingFile === undefined) return undefined
  const target = resolveBacking(path, backingFile)
  const format = backingFormatOf(path, backingFormat)
  checkFolder(path, target, folders)
  const l2CacheBytes = Math.min(options.l2CacheBytes ?? BASE_L2_CACHE, BASE_L2_CACHE)
  return openLayer(target, { ...options, format, readOnly: true, l2CacheBytes }, folders, seen, depth + 1)
}

/** The path of a backing file, which is relative to the image that names it. */
export function resolveBacking(path: string, name: string): string {
  if (isAbsolute(name)) return name
  if (/^[a-z][a-z0-9+.-]*:/i.test(name)) {
    throw new DiskError(
      'BACKING_FORBIDDEN',
      path,
      `names the backing file '${name}', which is not a plain path; rebase it`,
    )
  }
  return join(dirname(path), name)
}

export function backingFormatOf(path: string, format: string | undefined): DiskFormat {
  if (format === 'raw' || format === 'qcow2') return format
  throw new DiskError(
    'BACKING_FORMAT',
    path,
    format === undefined
      ? "does not say its backing file's format, and guessing it is not safe: set it with 'vitrine disk rebase --unsafe -F raw|qcow2'"
      : `has a backing file of format '${format}'; raw and qcow2 are supported`,
  )
}

function checkFolder(path: string, target: string, folders: readonly string[] | undefined): void {
  const actual = real(target)
  if (folders === undefined || folders.some(folder => actual.startsWith(folder.endsWith(sep) ? folder : folder + sep)))
    return
  throw new DiskError(
    'BACKING_FORBIDDEN',
    path,
    `its backing file ${target} is outside ${folders.join(', ')}; if that is meant, allow its folder (--allow)`,
  )
}

function real(path: string): string {
  try {
    return realpathSync.native(path)
  } catch (cause) {
    throw new DiskError('NOT_FOUND', path, 'cannot be found', { cause })
  }
}

export function openImageFd(path: string, writable: boolean): number {
  try {
    return openFd(path, (writable ? constants.O_RDWR : constants.O_RDONLY) | O_CLOEXEC)
  } catch (error) {
    if (error instanceof HostError && error.code === 'ENOENT')
      throw new DiskError('NOT_FOUND', path, 'does not exist', { cause: error })
    throw error
  }
}

/** From <fcntl.h> on Linux: Node does not name it. */
const O_CLOEXEC = 0o2000000
