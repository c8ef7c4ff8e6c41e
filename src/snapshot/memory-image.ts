/** Guest memory as a chain of layers, bottom first, open for mapping and reading. */
import { constants } from 'node:fs'
import { basename } from 'node:path'
import { HostError } from '../host/errors.ts'
import { closeFd, openFd, readAt } from '../host/file.ts'
import { SnapshotError } from './errors.ts'
import { hashText, PAGE } from './hash.ts'
import type { LayerRef } from './layer.ts'
import { planRuns } from './mapping-plan.ts'
import { decodeIndex, hashesOffset, layerBytes, type MemoryIndex } from './memory-index.ts'
import { PageSet } from './page-set.ts'
import { stampOfFd } from './stamp.ts'

/** More mappings than this slow restoring and ending a process down. */
const MAX_MAPS = 2048

export interface MemoryLayer {
  /** Where it is once it is committed; it may still be under a temporary name. */
  readonly path: string
  readonly fd: number
  readonly data: PageSet
  readonly zero: PageSet
  /** What a manifest says of it; undefined before it is committed. */
  ref(): LayerRef | undefined
}

/** A part of RAM and where its bytes are. */
export interface MemoryRun {
  /** `map`: mmap it privately; `read`: pread it, because there are too many mappings already. */
  readonly kind: 'map' | 'read'
  /** In RAM and, the same, in the file. */
  readonly offset: number
  readonly length: number
  readonly fd: number
  readonly path: string
}

export class MemoryImage {
  /** RAM size in bytes. */
  readonly size: number
  readonly layers: readonly MemoryLayer[]
  #open = true

  constructor(size: number, layers: readonly MemoryLayer[]) {
    this.size = size
    this.layers = layers
  }

  /** The names of the layers' files, bottom first: what a running machine holds (`SnapshotStore.hold`). */
  get layerFiles(): readonly string[] {
    return this.layers.map(layer => basename(layer.path))
  }

  /** In the order in which they are mapped: later ones lie over earlier ones. What is in no run is zeros. */
  plan(options: { readonly maxMaps?: number } = {}): readonly MemoryRun[] {
    return planRuns(this.layers, this.size / PAGE, options.maxMaps ?? MAX_MAPS).map(
      ({ kind, layer, offset, length }) => {
        const { fd, path } = this.layers[layer]!
        return { kind, offset, length, fd, path }
      },
    )
  }

  /** Pages that are not zeros. */
  shownPages(): PageSet {
    const shown = new PageSet(this.size / PAGE)
    for (const { data, zero } of this.layers) {
      for (let i = 0; i < shown.words.length; i++) {
        shown.words[i] = (shown.words[i]! & ~zero.words[i]!) | data.words[i]!
      }
    }
    return shown
  }

  /** Fills `target` with whole pages of RAM from `offset` on. */
  read(offset: number, target: Uint8Array): void {
    let page = offset / PAGE
    const end = (offset + target.length) / PAGE
    if (!Number.isInteger(page) || !Number.isInteger(end) || page < 0 || offset + target.length > this.size)
      throw new SnapshotError('INVALID', `memory from ${offset} on, ${target.length} bytes, is not whole pages of RAM`)
    while (page < end) {
      const layer = this.#ownerOf(page)
      let after = page + 1
      while (after < end && this.#ownerOf(after) === layer) after++
      const part = target.subarray(page * PAGE - offset, after * PAGE - offset)
      if (!layer) part.fill(0)
      else if (readAt(layer.fd, part, page * PAGE) < part.length)
        throw new SnapshotError('TRUNCATED', `${layer.path} was cut short: remove the snapshot, or import it again`)
      page = after
    }
  }

  #ownerOf(page: number): MemoryLayer | undefined {
    for (let i = this.layers.length - 1; i >= 0; i--) {
      const layer = this.layers[i]!
      if (layer.data.has(page)) return layer
      if (layer.zero.has(page)) return undefined
    }
    return undefined
  }

  /** Closes the files; what was mapped from them stays mapped. */
  close(): void {
    if (!this.#open) return
    this.#open = false
    for (const { fd } of this.layers) closeFd(fd)
  }

  [Symbol.dispose](): void {
    this.close()
  }
}

/** Opens one layer: its length, its index and whether it is the one that the manifest means. */
export function openLayer(
  path: string,
  ramSize: number,
  ref?: LayerRef,
): MemoryLayer & { index: MemoryIndex; touched: boolean } {
  let fd: number
  try {
    fd = openFd(path, constants.O_RDONLY)
  } catch (error) {
    if (!(error instanceof HostError && error.code === 'ENOENT')) throw error
    throw new SnapshotError(
      'MISSING_PARENT',
      `the memory layer ${path} is gone: this snapshot cannot be used, remove it`,
    )
  }
  try {
    const head = new Uint8Array(hashesOffset(ramSize))
    const got = readAt(fd, head, ramSize)
    const index = decodeIndex(head.subarray(0, got), ramSize, path)
    if (ref && hashText(head) !== ref.sum)
      throw new SnapshotError(
        'CORRUPT',
        `${path} is not the layer that the snapshot was made with: remove the snapshot`,
      )
    const stamp = stampOfFd(fd)
    if (Number(stamp.split(':')[0]) !== layerBytes(ramSize, index.data.count))
      throw new SnapshotError('TRUNCATED', `${path} has not its full length: remove the snapshot, or import it again`)
    return {
      path,
      fd,
      data: index.data,
      zero: index.zero,
      ref: () => ref,
      index,
      touched: ref !== undefined && stamp !== ref.stamp,
    }
  } catch (error) {
    closeFd(fd)
    throw error
  }
}
