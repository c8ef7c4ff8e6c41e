/** Cleaning up: removes what nothing refers to. Its caller holds the guard exclusively, so nobody is at work. */
import { lstatSync, readFileSync, rmSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { DiskError } from '../qcow2/errors.ts'
import { diskHeader } from './disk-layer.ts'
import { OVERLAY_LEFTOVER } from './draft.ts'
import { SnapshotError } from './errors.ts'
import { namesIn, type SnapshotFolder } from './folder.ts'
import { LAYER_FILE } from './layer.ts'
import type { SnapshotManifest } from './manifest.ts'
import { layerFiles } from './tree.ts'

/** In a box's folder: the memory layers that its running machine stands on. */
export const HOLD_FILE = 'layers.json'

export interface SweepResult {
  readonly removedFiles: number
  readonly freedBytes: number
  /** Somebody was at work, so nothing was done. */
  readonly busy: boolean
}

/**
 * A layer stays when a snapshot lists it, a box's disk has it below, a box holds it, or another layer that stays has it
 * below. With a manifest that cannot be read (`unsure`) all layers stay: it may be one of a newer Vitrine.
 */
export function sweep(folder: SnapshotFolder, manifests: readonly SnapshotManifest[], unsure: boolean): SweepResult {
  let removedFiles = 0
  let freedBytes = 0
  const remove = (path: string): void => {
    const stat = lstatSync(path, { throwIfNoEntry: false })
    if (!stat) return
    // A second name of a file that lives on frees nothing.
    if (stat.nlink === 1) freedBytes += stat.blocks * 512
    removedFiles++
    rmSync(path, { recursive: true, force: true })
  }
  for (const name of namesIn(folder.tmp)) remove(join(folder.tmp, name))
  const kept = new Set<string>()
  for (const manifest of manifests) for (const file of layerFiles(manifest)) kept.add(file)
  for (const box of namesIn(folder.boxes)) {
    const path = join(folder.boxes, box)
    for (const name of namesIn(path)) if (OVERLAY_LEFTOVER.test(name)) remove(join(path, name))
  }
  for (const file of layersOfBoxes(folder)) kept.add(file)
  for (const file of [...kept]) if (file.endsWith('.qcow2')) keepBelow(folder, folder.layer(file), kept)
  if (!unsure) {
    for (const name of namesIn(folder.layers)) {
      if (LAYER_FILE.test(name) && !kept.has(name)) remove(folder.layer(name))
    }
  }
  return { removedFiles, freedBytes, busy: false }
}

/** The layers that boxes stand on, with their disks or with their memory. */
export function layersOfBoxes(folder: SnapshotFolder): Set<string> {
  const kept = new Set<string>()
  for (const box of namesIn(folder.boxes)) {
    const path = join(folder.boxes, box)
    for (const file of heldBy(path)) kept.add(file)
    for (const name of namesIn(path)) if (name.endsWith('.qcow2')) keepBelow(folder, join(path, name), kept)
  }
  return kept
}

function heldBy(boxFolder: string): string[] {
  try {
    const held: unknown = JSON.parse(readFileSync(join(boxFolder, HOLD_FILE), 'utf8'))
    return Array.isArray(held) ? held.filter(file => typeof file === 'string') : []
  } catch {
    return []
  }
}

/** Adds the layers below a disk. A disk that cannot be read keeps nothing: it cannot be used either. */
function keepBelow(folder: SnapshotFolder, disk: string, kept: Set<string>): void {
  const seen = new Set<string>()
  for (let path: string | undefined = disk; path !== undefined && !seen.has(path); ) {
    seen.add(path)
    try {
      path = diskHeader(path).backing
    } catch (error) {
      if (error instanceof DiskError || error instanceof SnapshotError) return
      throw error
    }
    if (path !== undefined && dirname(path) === folder.layers) kept.add(basename(path))
  }
}
