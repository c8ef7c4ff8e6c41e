/** XXH64 in WebAssembly: what every checksum of a snapshot's files is. One instance a thread. */
import { instantiateWasm } from '../wasm/loader.ts'

interface XxhashModule {
  readonly memory: WebAssembly.Memory
  room(bytes: number): number
  hash(from: number, length: number): bigint
  hashPages(from: number, count: number, to: number): void
}

export const PAGE = 4096
/** What is read and hashed at once. */
export const CHUNK = 1 << 20

let wasm: XxhashModule | undefined
let base = 0

/** The module's buffer with room for `bytes`; the view is good until the next call. */
function buffer(bytes: number): Uint8Array {
  wasm ??= instantiateWasm<XxhashModule>('xxhash')
  base = wasm.room(bytes)
  return new Uint8Array(wasm.memory.buffer, base, bytes)
}

/** XXH64 of a piece of memory. */
export function hash64(bytes: Uint8Array): bigint {
  buffer(bytes.length).set(bytes)
  return BigInt.asUintN(64, wasm!.hash(base, bytes.length))
}

/** The same, as it stands in manifests: 16 digits. */
export const hashText = (bytes: Uint8Array): string => hash64(bytes).toString(16).padStart(16, '0')

/** Hashes pages where they are read to: no copy. */
export class PageHasher {
  readonly capacity = CHUNK / PAGE
  readonly #base: number

  constructor() {
    buffer(CHUNK + this.capacity * 8)
    this.#base = base
  }

  /** Room for `count` pages, to be filled before `hashes(count)`. */
  pages(count: number): Uint8Array {
    // The memory may have grown since, which detaches views of it.
    return new Uint8Array(wasm!.memory.buffer, this.#base, count * PAGE)
  }

  /** Eight bytes for each of the first `count` pages; good until the next call. */
  hashes(count: number): Uint8Array {
    wasm!.hashPages(this.#base, count, this.#base + CHUNK)
    return new Uint8Array(wasm!.memory.buffer, this.#base + CHUNK, count * 8)
  }
}
