/** XXH64, which every checksum of a snapshot's files is. */
import { roomFor, snapshotModule } from './wasm.ts'

export const PAGE = 4096
/** What is read and hashed at once. */
export const CHUNK = 1 << 20

/** XXH64 of a piece of memory. */
export function hash64(bytes: Uint8Array): bigint {
  const room = roomFor(bytes.length)
  room.bytes.set(bytes)
  return BigInt.asUintN(64, room.wasm.hash(room.base, bytes.length))
}

/** The same, as it stands in manifests: 16 digits. */
export const hashText = (bytes: Uint8Array): string => hash64(bytes).toString(16).padStart(16, '0')

/** Hashes pages where they are read to: no copy. */
export class PageHasher {
  readonly capacity = CHUNK / PAGE
  readonly #base: number

  constructor() {
    this.#base = roomFor(CHUNK + this.capacity * 8).base
  }

  /** Room for `count` pages, to be filled before `hashes(count)`. */
  pages(count: number): Uint8Array {
    // The memory may have grown since, which detaches views of it.
    return new Uint8Array(snapshotModule().memory.buffer, this.#base, count * PAGE)
  }

  /** Eight bytes for each of the first `count` pages; good until the next call. */
  hashes(count: number): Uint8Array {
    const wasm = snapshotModule()
    wasm.hashPages(this.#base, count, this.#base + CHUNK)
    return new Uint8Array(wasm.memory.buffer, this.#base + CHUNK, count * 8)
  }
}
