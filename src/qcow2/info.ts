/** What an image is, in the terms of `qemu-img info`. */
import { statSync } from 'node:fs'
import type { BlockImage } from './block-image.ts'
import { chainOf } from './chain.ts'
import { COMPAT_LAZY_REFCOUNTS, COMPRESSION_ZSTD, INCOMPAT_CORRUPT, INCOMPAT_DIRTY } from './layout.ts'
import { Qcow2Image } from './qcow2-image.ts'
import type { Snapshot } from './snapshots.ts'

/** What a disk image is. */
export interface DiskInfo {
  readonly path: string
  readonly format: 'raw' | 'qcow2'
  /** The size that a guest sees, and the space that the file takes on the host. */
  readonly virtualSize: number
  readonly actualSize: number
  readonly qcow2?: {
    readonly version: number
    readonly clusterSize: number
    readonly refcountBits: number
    readonly compression: 'zlib' | 'zstd'
    readonly lazyRefcounts: boolean
    readonly dirty: boolean
    readonly corrupt: boolean
    readonly backingFile: string | undefined
    readonly backingFormat: string | undefined
    readonly snapshots: readonly Snapshot[]
  }
}

/** What an open image is, without what is below it. */
export function infoOf(image: BlockImage): DiskInfo {
  const common = {
    path: image.path,
    format: image.format,
    virtualSize: image.sizeBytes,
    actualSize: statSync(image.path).blocks * 512,
  }
  if (!(image instanceof Qcow2Image)) return common
  const { header, snapshots } = image
  return {
    ...common,
    qcow2: {
      version: header.version,
      clusterSize: 2 ** header.clusterBits,
      refcountBits: 2 ** header.refcountOrder,
      compression: header.compressionType === COMPRESSION_ZSTD ? 'zstd' : 'zlib',
      lazyRefcounts: (header.compatibleFeatures & COMPAT_LAZY_REFCOUNTS) !== 0,
      dirty: (header.incompatibleFeatures & INCOMPAT_DIRTY) !== 0,
      corrupt: (header.incompatibleFeatures & INCOMPAT_CORRUPT) !== 0,
      backingFile: header.backingFile,
      backingFormat: header.backingFormat,
      snapshots,
    },
  }
}

/** The same for a whole chain, top first. */
export const infoOfChain = (image: BlockImage): DiskInfo[] => chainOf(image).map(infoOf)
