/** What a box needs before it can start: an image's disk, a kernel with its initramfs, an accelerator. */
import type { AcceleratorName } from '../accel/contract.ts'
import { requireAccelerator } from '../accel/select.ts'
import { ensureInitramfs } from '../image/initramfs.ts'
import { findKernel } from '../image/kernel/find.ts'
import type { ImageProgress } from '../image/progress.ts'
import { ImageStore } from '../image/store.ts'
import { createDisk } from '../qcow2/create.ts'
import type { BoxFolder } from './home.ts'
import type { ImageSettings } from './options.ts'
import type { BoxRecord } from './record.ts'
import type { Runtime } from './runtime.ts'
import type { LaunchPlan } from './vmm/launch.ts'

/** Long work, for people: a line of text, with bytes done and expected where they are known. */
export interface Progress {
  readonly text: string
  readonly done?: number
  readonly total?: number
}
export type ProgressListener = (progress: Progress) => void

export interface PreparedImage extends ImageSettings {
  readonly id: string
  /** The shared, read-only ext4 file. */
  readonly disk: string
  /** Makes a box's own disk: an overlay of that size. */
  createDisk(path: string, sizeBytes: number): void
}

function describeProgress(image: string, event: ImageProgress): Progress | undefined {
  switch (event.type) {
    case 'resolve':
      return { text: `Looking up ${image}` }
    case 'layer': {
      const what = event.phase === 'download' ? 'Fetching' : 'Unpacking'
      return { text: `${what} layer ${event.digest.slice(7, 19)}`, done: event.done, total: event.total }
    }
    case 'disk':
      return { text: 'Writing the disk', done: event.done, total: event.total }
    case 'wait':
      return { text: `Waiting for another process that prepares ${event.what}` }
    case 'retry':
      return { text: `Trying again: ${event.reason}` }
    case 'done':
      return undefined
  }
}

export async function prepareImage(runtime: Runtime, name: string, diskBytes: number): Promise<PreparedImage> {
  const store = new ImageStore({ home: runtime.home.path })
  const image = await store.get(name, {
    diskBytes,
    onProgress: event => {
      const progress = describeProgress(name, event)
      if (progress) runtime.onProgress(progress)
    },
  })
  const { entrypoint, cmd, env, user, workdir } = image.config
  return {
    id: image.id,
    disk: image.disk,
    entrypoint,
    cmd,
    env,
    user,
    workdir,
    createDisk: (path, sizeBytes) =>
      createDisk(path, { format: 'qcow2', size: sizeBytes, backing: { file: image.disk, format: 'raw' } }),
  }
}

/**
 * Words for the kernel by accelerator. The software CPU spends half of a boot on checking the certificates that are built
 * into Debian's kernel, which nothing here uses, and has no speculation to defend against.
 */
const KERNEL_ARGUMENTS: Readonly<Record<AcceleratorName, readonly string[]>> = {
  kvm: [],
  hvf: [],
  soft: ['mitigations=off', 'initcall_blacklist=load_system_certificate_list'],
}

export async function prepareGuest(runtime: Runtime, record: BoxRecord, folder: BoxFolder): Promise<LaunchPlan> {
  const accelerator = await requireAccelerator(record.config.accel)
  const home = runtime.home.path
  const kernel = await findKernel({ home, progress: text => runtime.onProgress({ text }) })
  return {
    folder: folder.path,
    id: folder.id,
    kernel: kernel.path,
    initrd: ensureInitramfs({ modules: kernel.modules }, home),
    accel: accelerator.name,
    kernelArguments: KERNEL_ARGUMENTS[accelerator.name],
  }
}
