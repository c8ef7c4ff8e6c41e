/** What a box needs before it can start: an image's disk, a kernel with its initramfs, an accelerator. */
import { existsSync } from 'node:fs'
import type { AcceleratorName } from '../accel/contract.ts'
import { requireAccelerator } from '../accel/select.ts'
import { ensureInitramfs } from '../image/initramfs.ts'
import { findKernel } from '../image/kernel/find.ts'
import { type Progress, ProgressSummary } from '../image/progress.ts'
import { ImageStore } from '../image/store.ts'
import { createDisk } from '../qcow2/create.ts'
import { checkCpu } from '../snapshot/cpu-needs.ts'
import { SnapshotError } from '../snapshot/errors.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { SnapshotStore } from '../snapshot/store.ts'
import { acceleratorFor } from './accelerator-note.ts'
import { BoxError } from './errors.ts'
import type { BoxFolder } from './home.ts'
import type { ImageSettings } from './options.ts'
import { readPending, type SnapshotRef } from './pending.ts'
import type { BoxRecord } from './record.ts'
import type { Runtime } from './runtime.ts'
import { mayUseTemplate, startFromTemplate, templateKey } from './templates.ts'
import { cpuOf } from './vmm/cpu.ts'
import type { LaunchPlan } from './vmm/launch.ts'

/** Hears of long work, a line at a time; undefined: it is over. */
export type ProgressListener = (progress: Progress | undefined) => void

export interface PreparedImage extends ImageSettings {
  readonly id: string
  /** The shared, read-only ext4 file. */
  readonly disk: string
  /** Makes a box's own disk: an overlay of that size; `durable` unless the box goes away when it ends. */
  createDisk(path: string, sizeBytes: number, durable: boolean): void
}

/** While this is held, no image is removed. */
export const holdImages = (runtime: Runtime): Promise<Disposable> => new ImageStore({ home: runtime.home.path }).hold()

export async function prepareImage(runtime: Runtime, name: string, diskBytes: number): Promise<PreparedImage> {
  const store = new ImageStore({ home: runtime.home.path })
  const summary = new ProgressSummary(name)
  const image = await store
    .get(name, {
      diskBytes,
      onProgress: event => {
        const progress = summary.add(event)
        if (progress) runtime.onProgress(progress)
      },
    })
    .finally(() => runtime.onProgress(undefined))
  const { entrypoint, cmd, env, user, workdir } = image.config
  return {
    id: image.id,
    disk: image.disk,
    entrypoint,
    cmd,
    env,
    user,
    workdir,
    createDisk: (path, sizeBytes, durable) =>
      createDisk(path, { format: 'qcow2', size: sizeBytes, backing: { file: image.disk, format: 'raw' }, durable }),
  }
}

/**
 * Words for the kernel of every box: the self-tests of its cryptography are 0.8 of the 1.4 G instructions of a boot of Debian's. The
 * algorithms are there all the same.
 */
const COMMON_ARGUMENTS = ['cryptomgr.notests=1']

/**
 * By accelerator, besides. On the software CPU it counts that the certificates built into Debian's kernel, which nothing here uses, are
 * not checked, and that enumerations keep their names in the texts of trace events; and there is no speculation to defend against.
 */
const KERNEL_ARGUMENTS: Readonly<Record<AcceleratorName, readonly string[]>> = {
  kvm: COMMON_ARGUMENTS,
  hvf: COMMON_ARGUMENTS,
  soft: [...COMMON_ARGUMENTS, 'mitigations=off', 'initcall_blacklist=load_system_certificate_list,trace_eval_init'],
}

/**
 * Whether a machine can go on from a snapshot on this host, so that nobody gives up what runs for what cannot: its files are
 * what they were, its accelerator is here, its CPU's features are.
 */
export async function checkUsable(store: SnapshotStore, manifest: SnapshotManifest): Promise<void> {
  await store.check(manifest)
  if (!manifest.machine) return
  const name = await acceleratorOf(manifest)
  if (manifest.cpu) checkCpu(manifest.cpu, await cpuOf(name), `the snapshot '${manifest.name ?? manifest.id}'`)
}

async function acceleratorOf(manifest: SnapshotManifest): Promise<AcceleratorName> {
  const { accelerator } = manifest.machine!
  try {
    return (await requireAccelerator(accelerator)).name
  } catch (cause) {
    throw new SnapshotError(
      'ACCELERATOR',
      `the snapshot '${manifest.name ?? manifest.id}' was taken on the accelerator '${accelerator}', which cannot be used here: ${(cause as Error).message}`,
      { cause },
    )
  }
}

/** A machine that goes on needs neither kernel nor choice: it is what it was. */
async function goOn(home: string, restore: SnapshotRef): Promise<LaunchPlan> {
  const manifest = new SnapshotStore(home).find(restore.owner, restore.id)
  const { kernel, initrd } = manifest.machine!
  const name = await acceleratorOf(manifest)
  return { kernel, initrd, accel: name, kernelArguments: [], restore }
}

export async function prepareGuest(runtime: Runtime, record: BoxRecord, folder: BoxFolder): Promise<LaunchPlan> {
  const home = runtime.home.path
  if (!existsSync(record.baseDisk)) {
    throw new BoxError(
      'NOT_FOUND',
      `the image that box '${record.name}' stands on is gone (${record.baseDisk}): fetch it again with 'vitrine pull ${record.config.image}', or remove the box with 'vitrine rm ${record.name}'`,
    )
  }
  const pending = readPending(folder)
  if (pending) return goOn(home, pending.snapshot)
  const accel = await acceleratorFor(home, record.config.accel)
  const kernel = await findKernel({ home, progress: text => runtime.onProgress({ text }) })
  const kernelArguments = KERNEL_ARGUMENTS[accel]
  const plan = {
    kernel: kernel.path,
    kernelIsOurs: kernel.source !== 'given',
    accel,
    kernelArguments,
  }
  const template = mayUseTemplate(folder, record)
    ? await templateKey(record, accel, kernel.path, kernelArguments)
    : undefined
  if (template !== undefined) {
    const store = new SnapshotStore(home)
    const found = store.template(template)
    if (found) {
      startFromTemplate(store, folder, record, found)
      return { ...plan, initrd: found.machine!.initrd, restore: { owner: found.owner, id: found.id } }
    }
  }
  const initrd = ensureInitramfs({ modules: kernel.modules }, home)
  return { ...plan, initrd, ...(template === undefined ? {} : { template }) }
}
