/** Which kernel to boot: the one asked for, else the tuned one if it was built, else Debian's, fetched when need be. */
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { kernelsFolder } from './cache.ts'
import { ensureDebianKernel, type KernelRecord, type Progress } from './debian.ts'
import { KernelError } from './errors.ts'
import { tunedKernel } from './tuned.ts'

/** Names a kernel file that is used instead of the one found. */
export const KERNEL_VARIABLE = 'VITRINE_KERNEL'

/** A kernel on this machine. */
export interface FoundKernel {
  /** A vmlinux, or whatever file the user gave. */
  readonly path: string
  readonly source: 'given' | 'debian' | 'tuned'
  /** Where its modules are, for an initramfs; a given or tuned kernel has none. */
  readonly modules: string | undefined
  readonly record: KernelRecord | undefined
}

/** Which kernel is wanted. */
export interface FindOptions {
  /** A kernel file by the user's choice. */
  readonly kernel?: string | undefined
  /** False: Debian's, even where the tuned one was built. */
  readonly tuned?: boolean
  readonly home?: string | undefined
  readonly progress?: Progress
}

/** The kernel to boot; fetched first where there is none. */
export async function findKernel(options: FindOptions = {}): Promise<FoundKernel> {
  const given = options.kernel ?? (process.env[KERNEL_VARIABLE] || undefined)
  if (given !== undefined) {
    if (!existsSync(given)) {
      const by = options.kernel === undefined ? ` (named by ${KERNEL_VARIABLE})` : ''
      throw new KernelError('NOT_FOUND', `there is no kernel ${given}${by}: give the path of a vmlinux or bzImage`)
    }
    return { path: given, source: 'given', modules: undefined, record: undefined }
  }
  const folder = kernelsFolder(options.home)
  const tuned = options.tuned === false ? undefined : tunedKernel(folder)
  const entry = tuned ?? (await ensureDebianKernel(folder, options.progress))
  const record = readRecord(entry)
  const modules = join(entry, 'modules')
  return {
    path: join(entry, 'vmlinux'),
    source: record.source,
    modules: existsSync(modules) ? modules : undefined,
    record,
  }
}

export function readRecord(entry: string): KernelRecord {
  try {
    return JSON.parse(readFileSync(join(entry, 'kernel.json'), 'utf8')) as KernelRecord
  } catch (error) {
    throw new KernelError('CACHE', `the cached kernel ${entry} is damaged: remove that folder and try again`, {
      cause: error,
    })
  }
}
