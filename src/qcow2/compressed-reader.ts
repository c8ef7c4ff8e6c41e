/** Reads compressed clusters, and keeps the last few unpacked: guests read a cluster in pieces. */
import { decompressCluster } from './compression.ts'
import type { Storage } from './storage.ts'

const KEPT = 4

export class CompressedReader {
  readonly #storage: Storage
  readonly #type: number
  readonly #clusterSize: number
  readonly #path: string
  readonly #keys = new Float64Array(KEPT).fill(-1)
  readonly #clusters: Uint8Array[] = []
  #input = new Uint8Array(0)
  #next = 0

  constructor(storage: Storage, type: number, clusterSize: number, path: string) {
    this.#storage = storage
    this.#type = type
    this.#clusterSize = clusterSize
    this.#path = path
  }

  /** The unpacked cluster whose packed form is the `bytes` at `offset` of the file. */
  read(offset: number, bytes: number): Uint8Array {
    for (let i = 0; i < KEPT; i++) if (this.#keys[i] === offset) return this.#clusters[i]!
    if (this.#input.length < bytes) this.#input = new Uint8Array(bytes)
    const input = this.#input.subarray(0, bytes)
    this.#storage.read(input, offset)
    const cluster = decompressCluster(this.#type, input, this.#clusterSize, this.#path)
    this.#keys[this.#next] = offset
    this.#clusters[this.#next] = cluster
    this.#next = (this.#next + 1) % KEPT
    return cluster
  }

  /** Packed clusters were given back or written: what is kept may be stale. */
  forget(): void {
    this.#keys.fill(-1)
  }
}
