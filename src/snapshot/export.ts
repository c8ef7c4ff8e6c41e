/** A snapshot as one stream: its memory flattened and its disk flattened over the image, or with the image if asked. */
import { createHash } from 'node:crypto'
import { dirname } from 'node:path'
import { alignedBytes } from '../host/aligned.ts'
import { IoVector } from '../host/io-vector.ts'
import type { BlockImage } from '../qcow2/block-image.ts'
import { chainExtent } from '../qcow2/chain.ts'
import { openDisk } from '../qcow2/open.ts'
import { PAGE } from './hash.ts'
import type { SnapshotManifest } from './manifest.ts'
import type { SnapshotStore } from './store.ts'
import { encodeFrame, encodeStreamHead, type Frame, MAX_FRAME } from './stream-format.ts'

/** What goes into the stream. */
export interface ExportOptions {
  /** Includes the image's disk, for a machine that does not have it. */
  readonly withImage?: boolean
  readonly onProgress?: (done: number, total: number) => void
}

/** Frames that are packed at the same time, by zlib in libuv's threads. */
const PACKING = 4

/** Everything is checked as it is read; a damaged snapshot is not exported. */
export async function* exportSnapshot(
  store: SnapshotStore,
  manifest: SnapshotManifest,
  options: ExportOptions = {},
): AsyncGenerator<Buffer> {
  using _guard = await store.use()
  await store.verify(manifest)
  const hash = createHash('sha256')
  const emit = (bytes: Buffer): Buffer => {
    hash.update(bytes)
    return bytes
  }
  yield emit(encodeStreamHead(options.withImage === true && manifest.disk.base !== null))
  const total = (manifest.memory?.bytes ?? 0) + manifest.disk.bytes
  const queue: { frame: Frame; packed: Promise<Buffer[]> }[] = []
  try {
    for (const frame of framesOf(store, manifest, options)) {
      const packed = encodeFrame(frame)
      packed.catch(() => {})
      queue.push({ frame, packed })
      if (queue.length < PACKING) continue
      const oldest = queue.shift()!
      for (const part of await oldest.packed) yield emit(part)
      options.onProgress?.(progressOf(oldest.frame, manifest), total)
    }
    for (const { packed } of queue) for (const part of await packed) yield emit(part)
  } finally {
    await Promise.allSettled(queue.map(({ packed }) => packed))
  }
  const bytes = hash.digest()
  for (const part of await encodeFrame({ kind: 'end', offset: 0, length: bytes.length, bytes })) yield part
  options.onProgress?.(total, total)
}

function progressOf({ kind, offset }: Frame, { memory }: SnapshotManifest): number {
  if (kind === 'memory') return offset
  return kind === 'disk' || kind === 'disk-zero' ? (memory?.bytes ?? 0) + offset : 0
}

/** Each frame's bytes are its own: several are packed at a time. */
function* framesOf(store: SnapshotStore, manifest: SnapshotManifest, options: ExportOptions): Generator<Frame> {
  // What a CPU made of the code stays here: whoever imports a stranger's file must not have to trust it.
  const json = Buffer.from(JSON.stringify({ ...manifest, code: undefined }))
  yield { kind: 'manifest', offset: 0, length: json.length, bytes: json }
  const state = store.openState(manifest)
  for (let offset = 0; offset < state.length; offset += MAX_FRAME) {
    const bytes = state.subarray(offset, offset + MAX_FRAME)
    yield { kind: 'state', offset, length: bytes.length, bytes }
  }
  if (manifest.memory) yield* memoryFrames(store, manifest)
  const { base } = manifest.disk
  if (options.withImage && base) yield* baseFrames(base.path)
  yield* diskFrames(store, manifest)
}

function* memoryFrames(store: SnapshotStore, manifest: SnapshotManifest): Generator<Frame> {
  using image = store.openMemory(manifest)
  const shown = image.shownPages()
  for (let page = shown.next(0, true); page < shown.pages; ) {
    const end = Math.min(shown.next(page, false), page + MAX_FRAME / PAGE)
    const bytes = new Uint8Array((end - page) * PAGE)
    image.read(page * PAGE, bytes)
    yield { kind: 'memory', offset: page * PAGE, length: bytes.length, bytes }
    page = shown.next(end, true)
  }
}

function* baseFrames(path: string): Generator<Frame> {
  const image = openDisk(path, { format: 'raw', readOnly: true })
  try {
    for (let at = 0; at < image.sizeBytes; ) {
      const extent = image.extent(at, image.sizeBytes - at)
      const isData = extent.kind === 'data'
      const length = isData ? Math.min(extent.length, MAX_FRAME - (at % MAX_FRAME)) : extent.length
      if (isData) {
        const bytes = readBlocks(image, at, length)
        if (!isZero(bytes)) yield { kind: 'base', offset: at, length, bytes }
      }
      at += length
    }
  } finally {
    image.close()
  }
}

/** What the layers say; what only the image says is left out. */
function* diskFrames(store: SnapshotStore, manifest: SnapshotManifest): Generator<Frame> {
  const { disk } = manifest
  const folders = [store.layersFolder, ...(disk.base ? [dirname(disk.base.path)] : [])]
  const image = openDisk(store.diskPath(manifest), { format: 'qcow2', readOnly: true, backingFolders: folders })
  try {
    const baseBytes = disk.base?.bytes ?? 0
    for (let at = 0; at < image.sizeBytes; ) {
      const extent = chainExtent(image, at, image.sizeBytes - at)
      const isOurs = extent.present && extent.depth < disk.layers.length
      const isData = isOurs && !extent.zero
      const length = isOurs ? Math.min(extent.length, MAX_FRAME - (at % MAX_FRAME)) : extent.length
      if (isData) {
        const bytes = readBlocks(image, at, length)
        if (!isZero(bytes)) yield { kind: 'disk', offset: at, length, bytes }
        else if (at < baseBytes) yield { kind: 'disk-zero', offset: at, length, bytes: NOTHING }
      } else if (isOurs && at < baseBytes) yield { kind: 'disk-zero', offset: at, length, bytes: NOTHING }
      at += length
    }
  } finally {
    image.close()
  }
}

const NOTHING = new Uint8Array(0)
const ZEROS = new Uint8Array(MAX_FRAME)

const isZero = (bytes: Uint8Array): boolean => Buffer.compare(bytes, ZEROS.subarray(0, bytes.length)) === 0

const block = alignedBytes(MAX_FRAME)
const vector = new IoVector(block, 1)

function readBlocks(image: BlockImage, offset: number, length: number): Uint8Array {
  vector.clear()
  vector.push(0, length)
  image.readv(offset, vector)
  return block.slice(0, length)
}
