/** Compressed clusters: raw deflate with a 4 KiB window, or zstd. "Compressed Clusters Descriptor". */
import { constants, deflateRawSync, inflateRawSync } from 'node:zlib'
import { DiskError } from './errors.ts'
import { COMPRESSION_ZLIB } from './layout.ts'
import { decompressZstd } from './zstd.ts'
import { compressZstd } from './zstd-encoder.ts'

/** QEMU inflates with this window; a larger one would not be readable by it. */
export const WINDOW_BITS = 12

/** Unpacks one cluster. `input` may be followed by padding up to the next sector. */
export function decompressCluster(type: number, input: Uint8Array, clusterSize: number, path: string): Uint8Array {
  let output: Uint8Array
  try {
    output =
      type === COMPRESSION_ZLIB
        ? inflateRawSync(input, { maxOutputLength: clusterSize, finishFlush: constants.Z_SYNC_FLUSH })
        : decompressZstd(input, clusterSize)
  } catch (cause) {
    throw new DiskError('CORRUPT', path, 'a compressed cluster does not unpack: restore it from a copy', { cause })
  }
  if (output.length === clusterSize) return output
  throw new DiskError(
    'CORRUPT',
    path,
    `a compressed cluster unpacks to ${output.length} bytes instead of ${clusterSize}`,
  )
}

/** Packs one cluster, or returns undefined when that does not make it smaller. */
export function compressCluster(type: number, cluster: Uint8Array): Uint8Array | undefined {
  const packed =
    type === COMPRESSION_ZLIB ? deflateRawSync(cluster, { windowBits: WINDOW_BITS }) : compressZstd(cluster)
  return packed.length < cluster.length ? packed : undefined
}
