/**
 * A snapshot in the making: first its memory and disk, then `commit`, which makes it durable and visible at once. Until
 * then there is no snapshot, and a process that dies leaves only what the next cleaning up removes.
 */
import { randomBytes } from 'node:crypto'
import { chmodSync, linkSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import type { ProcessLock } from '../host/process-lock.ts'
import { createDisk } from '../qcow2/create.ts'
import type { CpuNeeds } from './cpu-needs.ts'
import { diskChain, diskHeader, fileSum, superblockSum } from './disk-layer.ts'
import { rethrowWrite, SnapshotError } from './errors.ts'
import { type SnapshotFolder, sync } from './folder.ts'
import type { CodeRef, LayerRef } from './layer.ts'
import {
  encodeManifest,
  type JsonValue,
  MAX_STATE,
  type MachineShape,
  type SnapshotKind,
  type SnapshotManifest,
  sha256,
} from './manifest.ts'
import type { MemoryImage } from './memory-image.ts'
import { MemoryWriter } from './memory-writer.ts'
import { stampOf } from './stamp.ts'

export interface DraftOptions {
  /** A box's id, `template` or `import`. */
  readonly owner: string
  readonly box: { readonly id: string; readonly name: string }
  /** Null for what is not for people. */
  readonly name: string | null
  readonly kind: SnapshotKind
  /** What a template is found by; a later one with the same key takes its place. */
  readonly key?: string
  /** The snapshot that the machine went on from. */
  readonly parent: string | null
}

export interface SnapshotFacts {
  /** CPUs and devices; null in a snapshot of the disk only. */
  readonly state: Uint8Array | null
  readonly machine: MachineShape | null
  readonly cpu: CpuNeeds | null
  /** The image's ext4 file, below all layers; null when the layers stand on nothing. */
  readonly base: string | null
  readonly image: string
  readonly imageId: string
  readonly settings: JsonValue
}

/** What a draft needs of the store that it is for. */
export interface DraftHost {
  readonly folder: SnapshotFolder
  /** Layers that manifests describe already. */
  knownLayers(owner: string): ReadonlyMap<string, LayerRef>
  /** Throws NAME_IN_USE. */
  checkName(owner: string, name: string | null, except: string): void
  ancestorsOf(owner: string, parent: string | null): readonly string[]
}

/** Names of overlays that a draft prepares beside a box's disk. */
export const OVERLAY_LEFTOVER = /^disk\.qcow2\.[0-9a-f]{12}\.overlay/

export const newId = (): string => randomBytes(6).toString('hex')

export class SnapshotDraft {
  readonly id: string
  readonly #host: DraftHost
  readonly #options: DraftOptions
  readonly #guard: ProcessLock
  readonly #layerId = newId()
  #writer: MemoryWriter | undefined
  #parentMemory: MemoryImage | undefined
  #code: { readonly bytes: Uint8Array; readonly build: string } | undefined
  #overlay: string | undefined
  #diskLayer: string | undefined
  #boxFolder: string | undefined
  #over = false

  /** `guard` is the store's, held shared; the draft lets it go. */
  constructor(host: DraftHost, options: DraftOptions, id: string, guard: ProcessLock) {
    this.#host = host
    this.#options = options
    this.id = id
    this.#guard = guard
  }

  get #folder(): SnapshotFolder {
    return this.#host.folder
  }

  /** Begins the memory layer: with a parent only what changed since, without one all of it. */
  memory(options: { readonly size: number; readonly parent?: MemoryImage }): MemoryWriter {
    const file = `${this.#layerId}.mem`
    this.#parentMemory = options.parent
    this.#writer = new MemoryWriter(
      join(this.#folder.tmp, file),
      this.#folder.layer(file),
      options.size,
      options.parent,
    )
    return this.#writer
  }

  /** Keeps what a CPU made of the guest's code at the moment of the snapshot. Optional, before `commit`. */
  code(bytes: Uint8Array, build: string): void {
    this.#code = { bytes, build }
  }

  /** Where the frozen disk will be. */
  get diskLayer(): string {
    return this.#folder.layer(`${this.#layerId}.qcow2`)
  }

  /** Makes the overlay that will take the disk's place, so that `freezeDisk` is only a link and a rename. Optional. */
  prepareDisk(diskPath: string): void {
    const { bytes } = diskHeader(diskPath)
    const overlay = `${diskPath}.${this.#layerId}.overlay`
    this.#overlay = overlay
    try {
      createDisk(overlay, { format: 'qcow2', size: bytes, backing: { file: this.diskLayer, format: 'qcow2' } })
    } catch (error) {
      rethrowWrite(error, overlay)
    }
  }

  /**
   * Makes a layer of a box's disk and puts a fresh overlay in its place. Nobody may have the disk open for writing; what
   * was written must be flushed. After a crash at any point the disk opens and shows the same: the layer is a second name of
   * the disk's file until the overlay takes the first one.
   */
  freezeDisk(diskPath: string): string {
    if (this.#overlay === undefined) this.prepareDisk(diskPath)
    const layer = this.adoptDisk(diskPath)
    renameSync(this.#overlay!, diskPath)
    this.#overlay = undefined
    this.#boxFolder = dirname(diskPath)
    chmodSync(layer, 0o400)
    return layer
  }

  /** As `freezeDisk`, but nothing takes the disk's place: for a file that nobody will write again. */
  adoptDisk(path: string): string {
    if (this.#diskLayer !== undefined) throw new SnapshotError('INVALID', 'the snapshot has a disk already')
    const layer = this.diskLayer
    linkSync(path, layer)
    this.#diskLayer = layer
    return layer
  }

  /** Checksums, durability, visibility. Call it when the machine is running again: it takes its time. */
  async commit(facts: SnapshotFacts): Promise<SnapshotManifest> {
    if (this.#over) throw new SnapshotError('INVALID', `the snapshot ${this.id} is committed or given up already`)
    if ((facts.state === null) !== (this.#writer === undefined))
      throw new SnapshotError('INVALID', 'a snapshot has state and memory, or neither of them')
    if (this.#diskLayer === undefined) throw new SnapshotError('INVALID', 'a snapshot needs a disk')
    const state = facts.state ?? new Uint8Array(0)
    if (state.length > MAX_STATE) throw new SnapshotError('INVALID', `a state of ${state.length} bytes is too large`)
    try {
      const memory = await this.#finishMemory()
      const disk = await this.#finishDisk(facts)
      const code = await this.#finishCode()
      const { owner, box, name, kind, key } = this.#options
      const manifest: SnapshotManifest = {
        id: this.id,
        owner,
        box: { id: box.id, name: box.name },
        name,
        kind,
        key: key ?? null,
        ancestors: this.#host.ancestorsOf(owner, this.#options.parent),
        created: new Date().toISOString(),
        machine: facts.machine,
        cpu: facts.cpu,
        memory,
        disk,
        ...(code ? { code } : {}),
        state: { bytes: state.length, sha256: sha256(state) },
        settings: facts.settings,
      }
      await this.#publish(manifest, state)
      return manifest
    } finally {
      this.abort()
    }
  }

  async #finishMemory(): Promise<SnapshotManifest['memory']> {
    const writer = this.#writer
    if (!writer) return null
    const below = this.#parentMemory ? this.#refsOf(this.#parentMemory) : []
    const own = await writer.finish()
    renameSync(join(this.#folder.tmp, own.file), this.#folder.layer(own.file))
    return { bytes: writer.size, layers: [...below, own] }
  }

  /** What the manifests of the parent's layers say of them. */
  #refsOf(parent: MemoryImage): LayerRef[] {
    return parent.layers.map((layer, index) => {
      const file = parent.layerFiles[index]!
      const ref = layer.ref()
      if (ref && stampOf(layer.path) !== undefined) return ref
      throw new SnapshotError(
        'MISSING_PARENT',
        `the memory layer ${file}, which this snapshot would stand on, is gone: take a full snapshot`,
      )
    })
  }

  async #finishCode(): Promise<CodeRef | undefined> {
    if (!this.#code) return undefined
    const { bytes, build } = this.#code
    const file = `${this.#layerId}.code`
    const temporary = join(this.#folder.tmp, file)
    try {
      writeFileSync(temporary, bytes, { mode: 0o600 })
      await sync(temporary)
    } catch (error) {
      rethrowWrite(error, temporary)
    }
    const path = this.#folder.layer(file)
    renameSync(temporary, path)
    return { file, ...(await fileSum(path)), stamp: stampOf(path) ?? '', build }
  }

  async #finishDisk(facts: SnapshotFacts): Promise<SnapshotManifest['disk']> {
    const top = this.#diskLayer!
    await sync(top)
    await sync(this.#folder.layers)
    if (this.#boxFolder !== undefined) await sync(this.#boxFolder)
    const { files, base } = diskChain(top, this.#folder.layers)
    // A box of an imported snapshot stands on layers alone.
    const wanted = facts.base === null || dirname(facts.base) === this.#folder.layers ? undefined : facts.base
    if (base !== wanted) {
      throw new SnapshotError(
        'MISSING_PARENT',
        `the disk stands on ${base ?? 'nothing'} and not on ${wanted ?? 'layers alone'}: it cannot be part of a snapshot`,
      )
    }
    const known = this.#host.knownLayers(this.#options.owner)
    const layers: LayerRef[] = []
    for (const file of files) {
      const path = this.#folder.layer(file)
      const stamp = stampOf(path)
      const ref = known.get(file)
      if (ref && ref.stamp === stamp) layers.push(ref)
      else layers.push({ file, ...(await fileSum(path)), stamp: stamp ?? '' })
    }
    const { image, imageId } = facts
    return {
      bytes: diskHeader(top).bytes,
      base: base === undefined ? null : { path: base, ...superblockSum(base), image, imageId },
      layers,
    }
  }

  async #publish(manifest: SnapshotManifest, state: Uint8Array): Promise<void> {
    const { folder } = this.#host
    const temporary = join(folder.tmp, `${this.id}.${this.#layerId}.snap`)
    try {
      writeFileSync(temporary, encodeManifest(manifest, state), { mode: 0o600 })
      await sync(temporary)
    } catch (error) {
      rethrowWrite(error, temporary)
    }
    using _lock = await folder.commitLock()
    this.#host.checkName(manifest.owner, manifest.name, manifest.id)
    renameSync(temporary, folder.manifest(manifest.owner, manifest.id))
    await sync(folder.manifests)
  }

  /** Gives the snapshot up, if it is not committed; a disk that was frozen stays as it is, and works. */
  abort(): void {
    if (this.#over) return
    this.#over = true
    this.#writer?.close()
    for (const kind of ['mem', 'code']) rmSync(join(this.#folder.tmp, `${this.#layerId}.${kind}`), { force: true })
    rmSync(join(this.#folder.tmp, `${this.id}.${this.#layerId}.snap`), { force: true })
    if (this.#overlay !== undefined) rmSync(this.#overlay, { force: true })
    this.#guard.release()
  }
}
