/** Writing a disk (its whole chain) to a new image file: raw or QCOW2, sparse, compressed if asked. */
import { randomBytes } from 'node:crypto'
import { constants, rmSync } from 'node:fs'
import { promisify } from 'node:util'
import { deflateRaw } from 'node:zlib'
import { openFd } from '../host/file.ts'
import type { BlockImage } from './block-image.ts'
import { chainExtent } from './chain.ts'
import { CompressedWriter } from './compressed-writer.ts'
import { compressCluster, WINDOW_BITS } from './compression.ts'
import { COPY_BYTES, CopyBuffer, ZERO_GRAIN } from './copy.ts'
import { type CreateOptions, checkTarget, formatQcow2, putInPlace } from './create.ts'
import { DiskError } from './errors.ts'
import type { DiskFormat } from './open.ts'
import { Qcow2Image } from './qcow2-image.ts'
import { RawImage } from './raw-image.ts'
import { FileStorage } from './storage.ts'

/** What the copy of a disk is to be. */
export interface ConvertOptions extends Omit<CreateOptions, 'size' | 'backing'> {
  readonly format: DiskFormat
  /** Packs every cluster (QCOW2 only). */
  readonly compress?: boolean
  readonly overwrite?: boolean
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
}

/** Clusters being packed at once, by zlib in libuv's threads. */
const PACKING = 16

const deflate = promisify<Uint8Array, { windowBits: number; chunkSize: number }, Buffer>(deflateRaw)

/** Copies what `source` shows to a new file, which appears whole under `path` or not at all. */
export async function convertDisk(source: BlockImage, path: string, options: ConvertOptions): Promise<void> {
  checkTarget(path, options.overwrite)
  if (options.compress && options.format !== 'qcow2') {
    throw new DiskError('INVALID_ARGUMENT', path, 'only QCOW2 images can be compressed')
  }
  const temporary = `${path}.new-${randomBytes(6).toString('hex')}`
  try {
    const target = createTarget(temporary, source.sizeBytes, options)
    try {
      if (options.compress && target instanceof Qcow2Image) await copyCompressed(source, target, options)
      else copyPlain(source, target, options)
      target.flush()
    } finally {
      target.close()
    }
    putInPlace(temporary, path, options)
  } catch (error) {
    rmSync(temporary, { force: true })
    throw error
  }
}

function createTarget(path: string, size: number, options: ConvertOptions): BlockImage {
  const storage = new FileStorage(openFd(path, constants.O_RDWR | constants.O_CREAT | constants.O_EXCL))
  try {
    if (options.format === 'raw') {
      storage.truncate(size)
      return new RawImage(storage, path)
    }
    formatQcow2(storage, path, { ...options, size })
    return new Qcow2Image(storage, path)
  } catch (error) {
    storage.close()
    throw error
  }
}

function copyPlain(source: BlockImage, target: BlockImage, options: ConvertOptions): void {
  const buffer = new CopyBuffer()
  const size = source.sizeBytes
  const grain = target instanceof Qcow2Image ? Math.min(target.clusterSize, 65536) : ZERO_GRAIN
  for (let at = 0; at < size; ) {
    const extent = chainExtent(source, at, size - at)
    if (extent.zero) {
      at += extent.length
    } else {
      // Chunks end at multiples of their size, so that clusters of the target are written whole.
      const length = Math.min(extent.length, COPY_BYTES - (at % COPY_BYTES))
      buffer.read(source, at, length)
      buffer.writeNonZero(target, at, length, grain)
      at += length
    }
    options.onProgress?.(at, size)
  }
}

async function copyCompressed(source: BlockImage, target: Qcow2Image, options: ConvertOptions): Promise<void> {
  const { clusterSize } = target
  const size = source.sizeBytes
  const writer = new CompressedWriter(target.metadata)
  const type = target.header.compressionType
  const pack = async (cluster: Uint8Array): Promise<Uint8Array | undefined> => {
    if (type !== 0) return compressCluster(type, cluster)
    const packed = await deflate(cluster, { windowBits: WINDOW_BITS, chunkSize: Math.max(64, clusterSize) })
    return packed.length < cluster.length ? packed : undefined
  }
  const queue: { cluster: number; plain: Uint8Array; packed: Promise<Uint8Array | undefined> }[] = []
  const buffer = new CopyBuffer()
  const writeOldest = async (): Promise<void> => {
    const { cluster, plain, packed } = queue.shift()!
    const bytes = await packed
    if (bytes) writer.write(cluster, bytes)
    else {
      const length = Math.min(clusterSize, size - cluster * clusterSize)
      buffer.bytes.set(plain.subarray(0, length))
      buffer.write(target, cluster * clusterSize, 0, length)
    }
  }
  const reader = new CopyBuffer()
  try {
    for (let at = 0; at < size; ) {
      const extent = chainExtent(source, at, size - at)
      if (extent.zero && extent.length >= clusterSize) at += Math.floor(extent.length / clusterSize) * clusterSize
      else {
        const length = Math.min(
          COPY_BYTES,
          size - at,
          Math.max(clusterSize, extent.length - (extent.length % clusterSize)),
        )
        const bytes = reader.read(source, at, length)
        for (let from = 0; from < length; from += clusterSize) {
          const part = bytes.subarray(from, Math.min(length, from + clusterSize))
          if (reader.isZero(from, from + part.length)) continue
          const plain = new Uint8Array(clusterSize)
          plain.set(part)
          if (queue.length >= PACKING) await writeOldest()
          queue.push({ cluster: (at + from) / clusterSize, plain, packed: pack(plain) })
        }
        at += Math.ceil(length / clusterSize) * clusterSize
      }
      options.onProgress?.(Math.min(at, size), size)
    }
    while (queue.length > 0) await writeOldest()
  } finally {
    await Promise.allSettled(queue.map(({ packed }) => packed))
  }
}
