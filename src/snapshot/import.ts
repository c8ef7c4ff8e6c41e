/**
 * A stream becomes a snapshot. Everything is checked as it arrives, and the snapshot appears when all of it has: what is
 * damaged, foreign, cut or in the way of something else leaves nothing behind.
 */
import { createHash } from 'node:crypto'
import { rmSync, statSync } from 'node:fs'
import { basename, join } from 'node:path'
import { alignedBytes } from '../host/aligned.ts'
import { IoVector } from '../host/io-vector.ts'
import { ImageCache } from '../image/cache.ts'
import type { BlockImage } from '../qcow2/block-image.ts'
import { createDisk } from '../qcow2/create.ts'
import { openDisk } from '../qcow2/open.ts'
import { superblockSum } from './disk-layer.ts'
import { newId, type SnapshotDraft } from './draft.ts'
import { rethrowWrite, SnapshotError } from './errors.ts'
import { type BaseDisk, MAX_STATE, parseManifest, type SnapshotManifest, sha256 } from './manifest.ts'
import type { MemoryWriter } from './memory-writer.ts'
import type { SnapshotStore } from './store.ts'
import {
  checkStreamHead,
  corrupt,
  decodeFrame,
  decodeFrameHead,
  FRAME_BYTES,
  FRAME_KINDS,
  type Frame,
  MAX_FRAME,
  STREAM_HEAD_BYTES,
  StreamReader,
} from './stream-format.ts'

/** What an imported snapshot becomes. */
export interface ImportOptions {
  /** The name that it gets; the one that it had, unless told. */
  readonly name?: string
  /** For messages: the file's name. */
  readonly where?: string
  readonly onProgress?: (doneBytes: number) => void
}

/** The owner of imported snapshots: they belong to no box of this home. */
export const IMPORT_OWNER = 'import'

/** Reads what `exportSnapshot` wrote; all of it is checked before it is there. */
export async function importSnapshot(
  store: SnapshotStore,
  source: AsyncIterable<Uint8Array>,
  options: ImportOptions = {},
): Promise<SnapshotManifest> {
  const where = options.where ?? 'the stream'
  const reader = new StreamReader(source, where)
  const cache = new ImageCache(store.folder.home)
  cache.prepare()
  // No image is removed while we may come to stand on it.
  using _images = await cache.guard('shared')
  let importer: Importer | undefined
  try {
    const hash = createHash('sha256')
    const take = async (length: number): Promise<Buffer> => {
      const bytes = await reader.take(length)
      hash.update(bytes)
      return bytes
    }
    const start = await take(STREAM_HEAD_BYTES).catch((error: Error) => {
      throw reader.position === 0 && error instanceof SnapshotError
        ? new SnapshotError('TRUNCATED', `${where} is too short to be a snapshot: give what 'vitrine export' wrote`)
        : error
    })
    const { withImage } = checkStreamHead(start, where)
    let order = -1
    for (;;) {
      const before = hash.copy()
      const head = decodeFrameHead(await take(FRAME_BYTES), where)
      const frame = await decodeFrame(head, await take(head.stored), where)
      // Disk data and disk zeros come mixed.
      const rank = FRAME_KINDS.indexOf(frame.kind === 'disk-zero' ? 'disk' : frame.kind)
      if (rank < order || (rank === order && frame.kind === 'manifest')) throw corrupt(where, 'frames out of order')
      if (order < 0 && (frame.kind !== 'manifest' || frame.offset !== 0))
        throw corrupt(where, 'it does not begin with a manifest')
      order = rank
      if (frame.kind === 'manifest') {
        importer = await Importer.begin(store, cache, frame.bytes, { where, withImage, name: options.name })
      } else if (frame.kind === 'end') {
        if (frame.offset !== 0 || Buffer.compare(frame.bytes, before.digest()) !== 0)
          throw corrupt(where, 'the checksum of the whole')
        if (!(await reader.atEnd())) throw corrupt(where, 'something follows its end')
        return await importer!.finish()
      } else importer!.add(frame)
      options.onProgress?.(reader.position)
    }
  } catch (error) {
    return rethrowWrite(error, `the imported snapshot in ${store.folder.path}`)
  } finally {
    importer?.dispose()
    await reader.close()
  }
}

class Importer {
  readonly #draft: SnapshotDraft
  readonly #manifest: SnapshotManifest
  readonly #where: string
  readonly #base: string | null
  readonly #diskPath: string
  readonly #disk: BlockImage
  readonly #memory: MemoryWriter | undefined
  readonly #state: Uint8Array[] = []
  #stateBytes = 0
  #memoryEnd = 0
  #baseEnd = 0
  #diskEnd = 0
  #isDiskOpen = true
  readonly #block = alignedBytes(MAX_FRAME)
  readonly #vector = new IoVector(this.#block, 1)

  private constructor(
    draft: SnapshotDraft,
    manifest: SnapshotManifest,
    where: string,
    base: string | null,
    diskPath: string,
  ) {
    this.#draft = draft
    this.#manifest = manifest
    this.#where = where
    this.#base = base
    this.#diskPath = diskPath
    const backing = base === null ? {} : { backing: { file: base, format: 'raw' as const } }
    createDisk(diskPath, { format: 'qcow2', size: manifest.disk.bytes, ...backing })
    this.#disk = openDisk(diskPath, { format: 'qcow2', backingFolders: 'any' })
    this.#memory = manifest.memory ? draft.memory({ size: manifest.memory.bytes }) : undefined
  }

  static async begin(
    store: SnapshotStore,
    cache: ImageCache,
    json: Uint8Array,
    { where, withImage, name }: { where: string; withImage: boolean; name: string | undefined },
  ): Promise<Importer> {
    const manifest = parseManifest(Buffer.from(json.buffer, json.byteOffset, json.length).toString(), where)
    if (manifest.state.bytes > MAX_STATE) throw corrupt(where, 'the length of its state')
    if (manifest.disk.bytes % 512 !== 0 || manifest.disk.bytes > 2 ** 50) throw corrupt(where, 'the size of its disk')
    const base = manifest.disk.base ? findBase(cache, manifest.disk.base) : undefined
    if (manifest.disk.base && base === undefined && !withImage) {
      const { image, path } = manifest.disk.base
      throw new SnapshotError(
        'MISSING_PARENT',
        `the snapshot stands on the image ${image} (${basename(path)}), which this home does not have: fetch it with 'vitrine pull ${image}', or export the snapshot with --with-image`,
      )
    }
    const draft = await store.begin({
      owner: IMPORT_OWNER,
      box: manifest.box,
      name: name ?? manifest.name ?? manifest.box.name,
      kind: 'snapshot',
      parent: null,
    })
    const diskPath = join(store.folder.tmp, `${newId()}.import.qcow2`)
    try {
      return new Importer(draft, manifest, where, base ?? null, diskPath)
    } catch (error) {
      draft.abort()
      rmSync(diskPath, { force: true })
      throw error
    }
  }

  add(frame: Frame): void {
    const { kind, offset, length, bytes } = frame
    const { memory, disk } = this.#manifest
    const check = (is: boolean): void => {
      if (!is) throw corrupt(this.#where, `${kind} at ${offset} is not where it can be`)
    }
    if (kind === 'state') {
      check(offset === this.#stateBytes && offset + length <= this.#manifest.state.bytes)
      this.#state.push(bytes)
      this.#stateBytes += length
    } else if (kind === 'memory') {
      check(memory !== null && offset >= this.#memoryEnd && offset % 4096 === 0)
      check(length % 4096 === 0 && offset + length <= memory!.bytes)
      this.#memory!.write(offset, bytes)
      this.#memoryEnd = offset + length
    } else if (kind === 'base') {
      check(disk.base !== null && offset >= this.#baseEnd && length > 0)
      check(offset % 512 === 0 && length % 512 === 0 && offset + length <= Math.min(disk.base!.bytes, disk.bytes))
      this.#baseEnd = offset + length
      if (this.#base === null) this.#write(offset, bytes)
    } else {
      check(offset >= this.#diskEnd && offset % 512 === 0 && length % 512 === 0 && length > 0)
      check(offset + length <= disk.bytes)
      this.#diskEnd = offset + length
      if (kind === 'disk-zero') this.#disk.writeZeroes(offset, length, true)
      else this.#write(offset, bytes)
    }
  }

  #write(offset: number, bytes: Uint8Array): void {
    this.#block.set(bytes)
    this.#vector.clear()
    this.#vector.push(0, bytes.length)
    this.#disk.writev(offset, this.#vector)
  }

  async finish(): Promise<SnapshotManifest> {
    const { state: said, disk, machine, cpu, settings } = this.#manifest
    const state = Buffer.concat(this.#state)
    if (state.length !== said.bytes || sha256(state) !== said.sha256) throw corrupt(this.#where, 'its state')
    this.#memory?.seal().close()
    this.#disk.flush()
    this.#closeDisk()
    this.#draft.adoptDisk(this.#diskPath)
    return this.#draft.commit({
      state: this.#memory ? state : null,
      machine,
      cpu,
      base: this.#base,
      image: disk.base?.image ?? '',
      imageId: disk.base?.imageId ?? '',
      settings,
    })
  }

  #closeDisk(): void {
    if (!this.#isDiskOpen) return
    this.#isDiskOpen = false
    this.#disk.close()
  }

  dispose(): void {
    try {
      this.#closeDisk()
    } catch {
      // A disk that cannot be flushed is removed anyway.
    }
    this.#draft.abort()
    rmSync(this.#diskPath, { force: true })
  }
}

/** The same image's disk in this home; images are built the same everywhere. */
function findBase(cache: ImageCache, base: BaseDisk): string | undefined {
  const name = basename(base.path)
  if (!/^[\w.-]+\.ext4$/.test(name)) return undefined
  const path = join(cache.path, 'disks', name)
  if (!statSync(path, { throwIfNoEntry: false })?.isFile()) return undefined
  const { sum, bytes } = superblockSum(path)
  if (sum !== base.sum || bytes !== base.bytes) return undefined
  cache.touch(path)
  return path
}
