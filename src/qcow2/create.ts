/** Creating images: written under a temporary name, made durable, then renamed into place. */

import { randomBytes } from 'node:crypto'
import { constants, existsSync, linkSync, renameSync } from 'node:fs'
import { dirname } from 'node:path'
import { closeFd, openFd, syncData } from '../host/file.ts'
import { removeFile } from '../host/remove.ts'
import { roundUp, setU64, viewOver } from './bytes.ts'
import { DiskError } from './errors.ts'
import { encodeHeader, type Header, l1EntriesFor } from './header.ts'
import {
  COMPAT_LAZY_REFCOUNTS,
  COMPRESSION_ZLIB,
  COMPRESSION_ZSTD,
  DEFAULT_CLUSTER_BITS,
  DEFAULT_REFCOUNT_ORDER,
  INCOMPAT_COMPRESSION,
  MAX_CLUSTER_BITS,
  MAX_L1_BYTES,
  MAX_REFCOUNT_ORDER,
  MIN_CLUSTER_BITS,
} from './layout.ts'
import { lockImage } from './lock.ts'
import type { DiskFormat } from './open.ts'
import { setRefcount } from './refcount-width.ts'
import { FileStorage, type Storage } from './storage.ts'

export interface CreateOptions {
  /** Bytes, rounded up to whole sectors of 512. */
  readonly size: number
  readonly version?: 2 | 3
  readonly clusterSize?: number
  readonly refcountBits?: number
  readonly compression?: 'zlib' | 'zstd'
  readonly lazyRefcounts?: boolean
  readonly backing?: { readonly file: string; readonly format: DiskFormat }
}

/** What a new disk is to be. */
export interface CreateFileOptions extends CreateOptions {
  readonly format: DiskFormat
  /** Replaces a file that is there. */
  readonly overwrite?: boolean
  /** False: nobody needs it after a power cut, so nothing waits for the host's disk. */
  readonly durable?: boolean
}

/** Refuses a name that is taken; when it may be replaced, refuses a disk that somebody is using. */
export function checkTarget(path: string, overwrite: boolean | undefined): void {
  if (!existsSync(path)) return
  if (!overwrite) {
    throw new DiskError('INVALID_ARGUMENT', path, 'exists already; choose another name or overwrite it (--force)')
  }
  const fd = openFd(path, constants.O_RDONLY)
  try {
    lockImage(fd, true, path)
  } finally {
    closeFd(fd)
  }
}

/** Makes a new image file, whole or not at all. */
export function createDisk(path: string, options: CreateFileOptions): void {
  checkTarget(path, options.overwrite)
  const temporary = `${path}.new-${randomBytes(6).toString('hex')}`
  const storage = new FileStorage(openFd(temporary, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL))
  try {
    try {
      if (options.format === 'raw') storage.truncate(roundUp(checkSize(options.size, path), 512))
      else formatQcow2(storage, path, options)
      if (options.durable !== false) storage.flush()
    } finally {
      storage.close()
    }
    putInPlace(temporary, path, options)
  } catch (error) {
    removeFile(temporary)
    throw error
  }
}

/** Gives a finished file its name. */
export function putInPlace(
  temporary: string,
  path: string,
  { overwrite, durable = true }: Pick<CreateFileOptions, 'overwrite' | 'durable'>,
): void {
  if (overwrite) renameSync(temporary, path)
  else {
    // link() fails when somebody made the name meanwhile; rename() would replace their file.
    linkSync(temporary, path)
    removeFile(temporary)
  }
  if (!durable) return
  const folder = openFd(dirname(path), constants.O_RDONLY)
  try {
    syncData(folder)
  } finally {
    closeFd(folder)
  }
}

/**
 * Writes an empty image to an empty file: header, refcount table, refcount blocks and L1 table in a row.
 */
export function formatQcow2(storage: Storage, path: string, options: CreateOptions): void {
  const header = newHeader(path, options)
  const clusterSize = 2 ** header.clusterBits
  const l1Clusters = Math.ceil((header.l1Size * 8) / clusterSize)
  const blockEntries = (clusterSize * 8) / 2 ** header.refcountOrder
  let blocks = 1
  let tableClusters = 1
  for (;;) {
    const used = 1 + tableClusters + blocks + l1Clusters
    const needBlocks = Math.ceil(used / blockEntries)
    const needTable = Math.ceil((needBlocks * 8) / clusterSize)
    if (needBlocks <= blocks && needTable <= tableClusters) break
    blocks = Math.max(blocks, needBlocks)
    tableClusters = Math.max(tableClusters, needTable)
  }
  const used = 1 + tableClusters + blocks + l1Clusters
  header.refcountTableOffset = clusterSize
  header.refcountTableClusters = tableClusters
  header.l1TableOffset = (1 + tableClusters + blocks) * clusterSize
  const bytes = new Uint8Array((1 + tableClusters + blocks) * clusterSize)
  const view = viewOver(bytes)
  bytes.set(encodeHeader(header, path))
  for (let i = 0; i < blocks; i++) setU64(view, clusterSize + i * 8, (1 + tableClusters + i) * clusterSize)
  const firstBlock = (1 + tableClusters) * clusterSize
  for (let cluster = 0; cluster < used; cluster++) setRefcount(view, firstBlock, cluster, 2 ** header.refcountOrder, 1)
  storage.write(bytes, 0)
  storage.truncate(used * clusterSize)
}

function newHeader(path: string, options: CreateOptions): Header {
  const bad = (what: string): DiskError => new DiskError('INVALID_ARGUMENT', path, what)
  const version = options.version ?? 3
  const clusterBits = Math.log2(options.clusterSize ?? 2 ** DEFAULT_CLUSTER_BITS)
  if (!Number.isInteger(clusterBits) || clusterBits < MIN_CLUSTER_BITS || clusterBits > MAX_CLUSTER_BITS) {
    throw bad(`a cluster size of ${options.clusterSize} is not a power of two from 512 to 2 MiB`)
  }
  const refcountOrder = Math.log2(options.refcountBits ?? 2 ** DEFAULT_REFCOUNT_ORDER)
  if (!Number.isInteger(refcountOrder) || refcountOrder < 0 || refcountOrder > MAX_REFCOUNT_ORDER) {
    throw bad(`refcounts of ${options.refcountBits} bits are not possible: 1, 2, 4, 8, 16, 32 or 64`)
  }
  if (version === 2 && (refcountOrder !== 4 || options.compression === 'zstd' || options.lazyRefcounts)) {
    throw bad('version 2 has 16-bit refcounts, zlib and no lazy refcounts; use version 3')
  }
  const size = roundUp(checkSize(options.size, path), 512)
  const l1Size = l1EntriesFor(size, clusterBits)
  if (l1Size * 8 > MAX_L1_BYTES) {
    throw new DiskError('TOO_LARGE', path, `${size} bytes need an L1 table over 32 MiB; use larger clusters`)
  }
  const zstd = options.compression === 'zstd'
  return {
    version,
    backingFile: options.backing?.file,
    backingFormat: options.backing?.format,
    clusterBits,
    size,
    l1Size: Math.max(1, l1Size),
    l1TableOffset: 0,
    refcountTableOffset: 0,
    refcountTableClusters: 0,
    nbSnapshots: 0,
    snapshotsOffset: 0,
    incompatibleFeatures: zstd ? INCOMPAT_COMPRESSION : 0,
    compatibleFeatures: options.lazyRefcounts ? COMPAT_LAZY_REFCOUNTS : 0,
    autoclearFeatures: 0,
    refcountOrder,
    headerLength: 0,
    compressionType: zstd ? COMPRESSION_ZSTD : COMPRESSION_ZLIB,
    extensions: [],
  }
}

function checkSize(size: number, path: string): number {
  if (Number.isSafeInteger(size) && size >= 0) return size
  throw new DiskError('INVALID_ARGUMENT', path, `${size} is not a size in bytes`)
}
