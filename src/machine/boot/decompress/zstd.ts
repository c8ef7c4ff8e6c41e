/**
 * Zstandard (RFC 8878), by fzstd: a small pure-JavaScript decoder. Node has its own only from version 22. It does not check
 * content checksums; what is decompressed here is checked by its owner (a kernel's size and ELF headers, a layer's digest).
 */
import { Decompress } from 'fzstd'
import { corrupt, tooLarge } from './faults.ts'

const PIECE = 1 << 20

export function unzstd(data: Uint8Array, limit: number): Uint8Array {
  const parts: Uint8Array[] = []
  let size = 0
  let ended = false
  // Fed in pieces, so that a small input that grows without bound is stopped early.
  const stream = new Decompress((part, final) => {
    size += part.length
    if (size > limit) throw tooLarge('zstd', limit)
    parts.push(part)
    ended = final === true
  })
  try {
    for (let at = 0; at < data.length; at += PIECE) {
      stream.push(data.subarray(at, at + PIECE), at + PIECE >= data.length)
    }
  } catch (error) {
    if (size > limit) throw tooLarge('zstd', limit)
    throw corrupt('zstd', error instanceof Error ? error.message : String(error))
  }
  if (!ended) throw corrupt('zstd', 'it is truncated')
  const out = new Uint8Array(size)
  let at = 0
  for (const part of parts) {
    out.set(part, at)
    at += part.length
  }
  return out
}
