/** Giving an overlay another backing file, or none. */
import type { BlockImage } from './block-image.ts'
import { COPY_BYTES, CopyBuffer } from './copy.ts'
import { DiskError } from './errors.ts'
import { type DiskFormat, type OpenOptions, openDisk, resolveBacking } from './open.ts'
import type { Qcow2Image } from './qcow2-image.ts'
import { rewriteHeader } from './rewrite-header.ts'

/** What a disk is to stand on. */
export interface RebaseOptions {
  /** The new backing file, named as the image shall name it (relative to the image); undefined for none. */
  readonly backing: { readonly file: string; readonly format: DiskFormat } | undefined
  /** Only changes the name: right when the new file has the same contents, as after moving it. */
  readonly unsafe?: boolean
  readonly backingFolders?: OpenOptions['backingFolders']
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
}

/** The disk shows the same before and after, and after a crash at any point (unless `unsafe`). */
export function rebaseDisk(path: string, options: RebaseOptions): void {
  const { backing: wanted, unsafe } = options
  const folders = options.backingFolders === undefined ? {} : { backingFolders: options.backingFolders }
  const overlay = openDisk(path, { format: 'qcow2', ...folders, ...(unsafe ? { withoutBacking: true } : {}) })
  try {
    if (wanted && !unsafe) {
      const target = resolveBacking(path, wanted.file)
      const below = openDisk(target, { format: wanted.format, readOnly: true, ...folders })
      try {
        refuseLoop(path, target, below)
        copyDifferences(overlay, below, options)
      } finally {
        below.close()
      }
    } else if (!unsafe) copyDifferences(overlay, undefined, options)
    overlay.flush()
    rewriteHeader(overlay.metadata, { backingFile: wanted?.file, backingFormat: wanted?.format })
  } finally {
    overlay.close()
  }
}

function refuseLoop(path: string, target: string, below: BlockImage): void {
  for (let layer: BlockImage | undefined = below; layer; layer = layer.backing) {
    if (layer.path === path)
      throw new DiskError('BACKING_LOOP', path, `would be its own backing file through ${target}`)
  }
}

/** Where the overlay shows its old backing file and the new one differs, the old bytes go into the overlay. */
function copyDifferences(overlay: Qcow2Image, below: BlockImage | undefined, options: RebaseOptions): void {
  const { clusterSize, sizeBytes: size } = overlay
  const old = new CopyBuffer()
  const fresh = new CopyBuffer()
  for (let at = 0; at < size; ) {
    const extent = overlay.extent(at, size - at)
    let length = extent.length
    if (extent.kind === 'hole') {
      length = Math.min(length, COPY_BYTES)
      const before = old.read(overlay, at, length)
      const there = below ? Math.min(length, Math.max(0, below.sizeBytes - at)) : 0
      const after = there > 0 && below ? fresh.read(below, at, there) : fresh.bytes.subarray(0, 0)
      fresh.bytes.fill(0, after.length, length)
      for (let from = 0; from < length; from += clusterSize) {
        const end = Math.min(length, from + clusterSize)
        if (Buffer.compare(before.subarray(from, end), fresh.bytes.subarray(from, end)) !== 0)
          old.write(overlay, at + from, from, end)
      }
    }
    at += length
    options.onProgress?.(at, size)
  }
}
