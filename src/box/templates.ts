/**
 * Templates: snapshots of freshly booted guests, so that only the first box of a kind boots. A template fits a box when
 * everything that went into the boot is the same; what is left (name, ports, rules, environment) the guest is told
 * after it goes on.
 */
import { createHash } from 'node:crypto'
import { existsSync, renameSync, statSync } from 'node:fs'
import type { AcceleratorName } from '../accel/contract.ts'
import { removeFile } from '../host/remove.ts'
import { createDisk } from '../qcow2/create.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import type { SnapshotStore } from '../snapshot/store.ts'
import { buildId } from './build-id.ts'
import type { BoxFolder } from './home.ts'
import type { BoxRecord } from './record.ts'
import { overlayOn } from './snapshots.ts'
import { cpuOf } from './vmm/cpu.ts'
import { hasCard } from './vmm/devices.ts'

/** Turns templates off: every box boots. */
export const TEMPLATES_VARIABLE = 'VITRINE_TEMPLATES'

/** Whether the box may start from a template: it has never run, and nobody said no. */
export function mayUseTemplate(folder: BoxFolder, record: BoxRecord): boolean {
  return record.config.template !== false && process.env[TEMPLATES_VARIABLE] !== '0' && existsSync(folder.fresh)
}

/** A text that is the same for two boxes exactly when they would boot alike. */
export async function templateKey(
  record: BoxRecord,
  accel: AcceleratorName,
  kernel: string,
  kernelArguments: readonly string[],
  build: string = buildId(),
): Promise<string> {
  const { cpus, memoryMib, diskGib } = record.config
  const { size, mtimeMs } = statSync(kernel)
  const parts = {
    // Another build may see another guest.
    build,
    image: [record.imageId, record.baseDisk],
    kernel: [kernel, size, mtimeMs, kernelArguments],
    cpu: [accel, (await cpuOf(accel)).digest],
    shape: [cpus, memoryMib, diskGib, hasCard(record.config)],
  }
  return createHash('sha256').update(JSON.stringify(parts)).digest('hex')
}

/** Puts the box's disk on the template's. The guest has not run. */
export function startFromTemplate(
  store: SnapshotStore,
  folder: BoxFolder,
  { config }: BoxRecord,
  template: SnapshotManifest,
): void {
  replaceDisk(folder, path => overlayOn(store, path, template, !config.autoRemove))
}

/** The disk of a box that has never run, as it was made. */
export function startFromImage(folder: BoxFolder, record: BoxRecord): void {
  const size = record.config.diskGib * 2 ** 30
  replaceDisk(folder, path =>
    createDisk(path, {
      ...{ format: 'qcow2', size, backing: { file: record.baseDisk, format: 'raw' } },
      durable: !record.config.autoRemove,
    }),
  )
}

function replaceDisk(folder: BoxFolder, make: (path: string) => void): void {
  const path = `${folder.disk}.back`
  removeFile(path)
  make(path)
  renameSync(path, folder.disk)
}
