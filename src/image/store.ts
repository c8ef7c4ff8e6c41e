/** Images by name: looked up, fetched, built once, kept, listed and removed. What `Box` and the CLI use. */
import { existsSync, readFileSync, rmSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { BASE_CONFIG, BASE_STAMP, makeBase } from './base.ts'
import { type BuildOptions, buildFromLayers, buildFromTree, type LayerInput } from './build.ts'
import { type Bundle, TarBundle } from './bundle.ts'
import { bytesOnDisk, hexOf, ImageCache } from './cache.ts'
import { type PruneOptions, type PruneResult, pruneCache } from './collect.ts'
import { compressionOf, spoolTar } from './decompress.ts'
import { fetchBlob } from './download.ts'
import { ImageError } from './errors.ts'
import { GROUP_BYTES } from './ext4/layout.ts'
import { findImage, isImageBundle, type LocalImage, openLayout } from './local.ts'
import {
  chainId,
  DOCUMENT_LIMIT,
  GUEST_PLATFORM,
  type ImageConfig,
  type ParsedConfig,
  parseConfig,
  parseJson,
  parseManifest,
} from './manifest.ts'
import type { OnProgress } from './progress.ts'
import { type ImageRecord, readRecord, readRecords, recordPath, writeRecord } from './record.ts'
import { formatReference, type Reference } from './reference.ts'
import { RegistryClient, type RegistryOptions } from './registry/client.ts'
import { registrySettings } from './registry/settings.ts'
import { type ImageSource, parseSource } from './source.ts'
import { treeOfDirectory } from './tree/directory-source.ts'
import { identityOfTree } from './tree/identity.ts'

/** Where images are kept and fetched from. */
export interface ImageStoreOptions extends RegistryOptions {
  /** Vitrine's home directory; images go to its folder images/. Mirrors and insecure registries may also come from the environment. */
  readonly home: string
}

/** How an image is got. */
export interface GetImageOptions {
  /** Whether the registry is asked: only if the image is not here (the usual), always, or never. */
  readonly pull?: 'missing' | 'always' | 'never'
  /** The size of the disk that it is for: 10 GiB unless told. The image fits it, or the call fails with TOO_LARGE. */
  readonly diskBytes?: number
  readonly onProgress?: OnProgress
}

/** An image that is ready to start boxes from. */
export interface Image {
  readonly name: string
  /** The digest of its config; for directories and archives of files, of what is in them. */
  readonly id: string
  /** The digest of its manifest. */
  readonly digest: string
  readonly config: ImageConfig
  /** The ext4 file: read-only, shared by all boxes. */
  readonly disk: string
  /** The size of the file system in it. A disk may be larger: the file system can grow while it is mounted. */
  readonly diskBytes: number
}

/** An image as `list` shows it. */
export interface ImageSummary {
  readonly name: string
  readonly id: string
  readonly digest: string
  readonly pulled: string
  readonly lastUsed: string
  /** Of its compressed layers. */
  readonly layerBytes: number
  /** What its ext4 files take on the disk. */
  readonly diskBytes: number
}

/** What a source turned out to be, and how to build it. */
interface Resolved {
  readonly record: ImageRecord
  build(options: BuildOptions): Promise<unknown>
  dispose(): void
}

const DEFAULT_DISK_BYTES = 10 * 2 ** 30
/** Larger file systems are not prepared: they grow in the guest. */
const LARGEST_PREPARED = DEFAULT_DISK_BYTES
/** In the names of ext4 files: a new layout must not be taken for an old one. */
const LAYOUT_VERSION = 1

/** The images of a home: got by name, listed, removed. Several processes may use one. */
export class ImageStore {
  readonly cache: ImageCache
  readonly #client: RegistryClient

  constructor(options: ImageStoreOptions) {
    this.cache = new ImageCache(options.home)
    this.#client = new RegistryClient({ ...registrySettings(process.env), ...options })
  }

  /** The image, fetched and built if it is not here yet. */
  async get(text: string, options: GetImageOptions = {}): Promise<Image> {
    const { pull = 'missing', diskBytes = DEFAULT_DISK_BYTES, onProgress = () => undefined } = options
    const source = parseSource(text)
    this.cache.prepare()
    using _guard = await this.cache.guard('shared')
    const known = readRecord(this.cache, source.key)
    const prepared = Math.max(Math.floor(Math.min(diskBytes, LARGEST_PREPARED) / GROUP_BYTES), 1) * GROUP_BYTES
    if (known && pull !== 'always' && isCurrent(source, known)) {
      const image = this.#finished(source, known, prepared, diskBytes)
      if (image) return image
    }
    if (pull === 'never' && !known && source.kind === 'registry') {
      throw new ImageError(
        'NOT_FOUND',
        `${source.name} is not on this machine: fetch it with 'vitrine pull ${source.name}'`,
      )
    }
    const work = this.cache.temporaryFolder()
    try {
      const reusable = known && pull !== 'always' ? known : undefined
      const resolved = await this.#resolve(source, reusable, work, onProgress)
      try {
        const { record } = resolved
        const ready = this.#finished(source, record, prepared, diskBytes)
        if (!ready) {
          const name = hexOf(record.contentId)
          using _turn = await this.cache.turn('disk', name, () => onProgress({ type: 'wait', what: source.name }))
          if (!this.#finished(source, record, prepared, diskBytes)) {
            await resolved.build({
              contentId: record.contentId,
              label: 'vitrine',
              work,
              target: this.#diskPath(record.contentId, prepared),
              minimumBytes: prepared,
              maximumBytes: diskBytes,
              onProgress,
            })
          }
        }
        await writeRecord(this.cache, record)
        const image = this.#finished(source, record, prepared, diskBytes)
        if (!image)
          throw new ImageError('CORRUPT', `the image of ${source.name} vanished from ${this.cache.path}: try again`)
        onProgress({ type: 'done', image: source.name, id: image.id })
        return image
      } finally {
        resolved.dispose()
      }
    } finally {
      rmSync(work, { recursive: true, force: true })
    }
  }

  /** While this is held nothing is removed: for the time between getting an image and being listed among those who keep its disk. */
  hold(): Promise<Disposable> {
    this.cache.prepare()
    return this.cache.guard('shared')
  }

  /** What is here, most recently used first. */
  list(): ImageSummary[] {
    return readRecords(this.cache)
      .map(({ record, lastUsed }) => ({
        name: record.name,
        id: record.id,
        digest: record.digest,
        pulled: record.pulled,
        lastUsed: lastUsed.toISOString(),
        layerBytes: record.layers.reduce((sum, { size }) => sum + size, 0),
        diskBytes: this.#disksOf(record.contentId).reduce((sum, path) => sum + bytesOnDisk(path), 0),
      }))
      .sort((a, b) => b.lastUsed.localeCompare(a.lastUsed))
  }

  /** Forgets an image, and removes what only it needed. Disks in `keep` (those of boxes) stay. */
  async remove(text: string, keep: PruneOptions['keep'] = new Set()): Promise<PruneResult> {
    this.cache.prepare()
    using _guard = await this.cache.guard('exclusive', 10_000)
    const all = readRecords(this.cache).map(({ record }) => record)
    const byId = all.filter(
      ({ id, name }) => name === text || (text.length >= 6 && hexOf(id).startsWith(text.replace(/^sha256:/, ''))),
    )
    const keys = byId.length > 0 ? byId.map(({ key }) => key) : [parseSource(text).key]
    const found = all.filter(({ key }) => keys.includes(key))
    if (found.length === 0)
      throw new ImageError('NOT_FOUND', `${text} is not on this machine: 'vitrine images' lists what is`)
    for (const record of found) rmSync(recordPath(this.cache, record.key), { force: true })
    const result = pruneCache(this.cache, { keep, graceMs: 0 })
    return { ...result, removedImages: found.map(({ name }) => name) }
  }

  /** Removes what no image needs, and images by age or to a total size, least recently used first. */
  async prune(options: PruneOptions = {}): Promise<PruneResult> {
    this.cache.prepare()
    using _guard = await this.cache.guard('exclusive', 10_000)
    return pruneCache(this.cache, options)
  }

  #diskPath(contentId: string, bytes: number): string {
    return this.cache.disk(`${hexOf(contentId)}-${bytes / GROUP_BYTES}-v${LAYOUT_VERSION}`)
  }

  #disksOf(contentId: string): string[] {
    return this.cache.disks().filter(path => path.includes(`/${hexOf(contentId)}-`))
  }

  /** The image if its disk is there. */
  #finished(source: ImageSource, record: ImageRecord, prepared: number, diskBytes: number): Image | undefined {
    const disk = this.#diskPath(record.contentId, prepared)
    const stat = statSync(disk, { throwIfNoEntry: false })
    if (!stat) return undefined
    if (stat.size > diskBytes) {
      throw new ImageError(
        'TOO_LARGE',
        `${source.name} needs a disk of ${Math.ceil(stat.size / 2 ** 30)} GiB, more than the ${Math.floor(diskBytes / 2 ** 30)} GiB allowed: ask for a larger disk`,
      )
    }
    this.cache.touch(disk)
    this.cache.touch(recordPath(this.cache, record.key))
    const { id, digest, config } = record
    return { name: source.name, id, digest, config, disk, diskBytes: stat.size }
  }

  #resolve(
    source: ImageSource,
    known: ImageRecord | undefined,
    work: string,
    onProgress: OnProgress,
  ): Promise<Resolved> {
    switch (source.kind) {
      case 'base':
        return this.#resolveBase(source, work)
      case 'registry':
        return this.#resolveRegistry(source, source.reference, known, onProgress)
      case 'directory':
        return this.#resolveDirectory(source, source.path)
      case 'layout':
        return Promise.resolve(
          this.#fromBundle(source, openLayout(source.path), source.tag, stampOf(join(source.path, 'index.json')), work),
        )
      case 'archive':
        return this.#resolveArchive(source, source.path, source.tag, work, onProgress)
    }
  }

  async #resolveBase(source: ImageSource, work: string): Promise<Resolved> {
    const { contentId, root } = await makeBase(work)
    const record = newRecord(source, {
      id: contentId,
      digest: contentId,
      contentId,
      config: BASE_CONFIG,
      stamp: BASE_STAMP,
      layers: [],
      diffIds: [],
    })
    return { record, build: options => buildFromTree(root, options), dispose: () => undefined }
  }

  async #resolveDirectory(source: ImageSource, path: string): Promise<Resolved> {
    const root = await treeOfDirectory(path)
    const contentId = identityOfTree(root)
    const record = newRecord(source, {
      id: contentId,
      digest: contentId,
      contentId,
      config: PLAIN_CONFIG,
      stamp: '',
      layers: [],
      diffIds: [],
    })
    return { record, build: options => buildFromTree(root, options), dispose: () => undefined }
  }

  async #resolveRegistry(
    source: ImageSource,
    reference: Reference,
    known: ImageRecord | undefined,
    onProgress: OnProgress,
  ): Promise<Resolved> {
    const record = known ?? (await this.#askRegistry(source, reference, onProgress))
    const layers: LayerInput[] = record.layers.map((descriptor, index) => ({
      digest: descriptor.digest,
      diffId: record.diffIds[index]!,
      fetch: again => {
        if (again) rmSync(this.cache.blob(descriptor.digest), { force: true })
        return fetchBlob(this.cache, this.#client, reference, { mediaType: '', ...descriptor }, onProgress)
      },
    }))
    return { record, build: options => buildFromLayers(layers, options), dispose: () => undefined }
  }

  async #askRegistry(source: ImageSource, reference: Reference, onProgress: OnProgress): Promise<ImageRecord> {
    onProgress({ type: 'resolve', image: source.name })
    const name = formatReference(reference)
    const { bytes, digest } = await this.#client.manifest(reference)
    const manifest = parseManifest(parseJson(bytes, `the manifest of ${name}`), name)
    if (manifest.config.size > DOCUMENT_LIMIT)
      throw new ImageError('CORRUPT', `the config of ${name} is too large to be one`)
    const configPath = await fetchBlob(this.cache, this.#client, reference, manifest.config, () => undefined)
    const parsed = parseConfig(readFileSync(configPath), `the config of ${name}`)
    checkImage(parsed, manifest.layers.length, name)
    return newRecord(source, {
      id: manifest.config.digest,
      digest,
      contentId: chainId(parsed.diffIds),
      config: parsed.config,
      stamp: '',
      layers: manifest.layers.map(layer => ({ digest: layer.digest, size: layer.size })),
      diffIds: parsed.diffIds,
    })
  }

  async #resolveArchive(
    source: ImageSource,
    path: string,
    tag: string | undefined,
    work: string,
    onProgress: OnProgress,
  ): Promise<Resolved> {
    const stamp = stampOf(path)
    let tar = path
    if (compressionOf(path) !== 'none') {
      const report = (done: number, total: number): void =>
        onProgress({ type: 'layer', digest: path, phase: 'unpack', done, total })
      tar = (await spoolTar(path, join(work, 'archive.tar'), { name: path, limitBytes: Infinity, onProgress: report }))
        .path
    }
    const bundle = new TarBundle(tar, path)
    if (isImageBundle(bundle)) return this.#fromBundle(source, bundle, tag, stamp, work)
    bundle[Symbol.dispose]()
    // Neither an archive of an image nor of a layout: it is the root file system itself.
    const { diffId } = await spoolTar(tar, join(work, 'root.tar'), { name: path, limitBytes: Infinity })
    const contentId = chainId([diffId])
    const record = newRecord(source, {
      id: contentId,
      digest: contentId,
      contentId,
      config: PLAIN_CONFIG,
      stamp,
      layers: [],
      diffIds: [diffId],
    })
    const layers: LayerInput[] = [{ digest: path, diffId, fetch: async () => tar }]
    return { record, build: options => buildFromLayers(layers, options), dispose: () => undefined }
  }

  #fromBundle(source: ImageSource, bundle: Bundle, tag: string | undefined, stamp: string, work: string): Resolved {
    let image: LocalImage
    try {
      image = findImage(bundle, tag)
      checkImage(image.parsed, image.layers.length, bundle.name)
    } catch (error) {
      bundle[Symbol.dispose]()
      throw error
    }
    const { id, digest, parsed } = image
    const record = newRecord(source, {
      id,
      digest,
      contentId: chainId(parsed.diffIds),
      config: parsed.config,
      stamp,
      // They stay where they are: nothing of them is in the cache.
      layers: [],
      diffIds: parsed.diffIds,
    })
    const layers: LayerInput[] = image.layers.map((layer, index) => ({
      digest: layer.digest,
      diffId: parsed.diffIds[index]!,
      fetch: async again => {
        const target = join(work, `layer-${index}`)
        if (again) rmSync(target, { force: true })
        return bundle.file(layer.path, target)
      },
    }))
    return { record, build: options => buildFromLayers(layers, options), dispose: () => bundle[Symbol.dispose]() }
  }
}

/** For trees that say nothing about commands. */
const PLAIN_CONFIG: ImageConfig = { ...BASE_CONFIG, workdir: '/' }

function newRecord(source: ImageSource, fields: Omit<ImageRecord, 'version' | 'key' | 'name' | 'pulled'>): ImageRecord {
  return { version: 1, key: source.key, name: source.name, pulled: new Date().toISOString(), ...fields }
}

/** Size, time and inode of a file: another file, or a changed one, has another stamp. */
function stampOf(path: string): string {
  const stat = statSync(path, { bigint: true })
  return `${stat.size}:${stat.mtimeNs}:${stat.ino}`
}

/** Whether what the record says still holds; a directory has to be looked through to know. */
function isCurrent(source: ImageSource, record: ImageRecord): boolean {
  if (source.kind === 'registry') return true
  if (source.kind === 'base') return record.stamp === BASE_STAMP
  if (source.kind === 'directory') return false
  const path = source.kind === 'layout' ? join(source.path, 'index.json') : source.path
  return existsSync(path) && stampOf(path) === record.stamp
}

function checkImage({ diffIds, platform }: ParsedConfig, layers: number, name: string): void {
  if (diffIds.length !== layers) {
    throw new ImageError(
      'CORRUPT',
      `${name}: the manifest has ${layers} layers and the config ${diffIds.length}: push it again`,
    )
  }
  if (platform.os !== GUEST_PLATFORM.os || platform.architecture !== GUEST_PLATFORM.architecture) {
    throw new ImageError(
      'NOT_FOUND',
      `${name} is for ${platform.os}/${platform.architecture}, and boxes run linux/amd64: choose another image`,
    )
  }
}
