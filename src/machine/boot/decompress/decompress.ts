/** The compressions a kernel, a module or an image layer comes in, told apart by their first bytes. */
import { gunzip } from './gzip.ts'
import { unlz4 } from './lz4.ts'
import { unxz } from './xz.ts'
import { unzstd } from './zstd.ts'

export type Compression = 'gzip' | 'lz4' | 'xz' | 'zstd'

export function compressionOf(data: Uint8Array): Compression | undefined {
  if (data.length < 6) return undefined
  const word = (data[0]! | (data[1]! << 8) | (data[2]! << 16) | (data[3]! << 24)) >>> 0
  if ((word & 0xffff) === 0x8b1f) return 'gzip'
  if (word === 0x184c2102) return 'lz4'
  if (word === 0xfd2fb528) return 'zstd'
  if (word === 0x587a37fd && data[4] === 0x5a && data[5] === 0) return 'xz'
  return undefined
}

/** Decompresses all of `data`; throws a MachineError when it is corrupt or would give more than `limit` bytes. */
export function decompress(compression: Compression, data: Uint8Array, limit: number): Uint8Array {
  switch (compression) {
    case 'gzip':
      return gunzip(data, limit)
    case 'lz4':
      return unlz4(data, limit)
    case 'xz':
      return unxz(data, limit)
    case 'zstd':
      return unzstd(data, limit)
  }
}
