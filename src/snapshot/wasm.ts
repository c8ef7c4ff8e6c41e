/** The WebAssembly module for snapshots: checksums and sets of pages. One instance a thread. */
import { instantiateWasm } from '../wasm/loader.ts'

/** wasm/snapshot/index.ts. */
interface SnapshotModule {
  readonly memory: WebAssembly.Memory
  room(bytes: number): number
  hash(from: number, length: number): bigint
  hashPages(from: number, count: number, to: number): void
  count(set: number, words: number): number
  show(base: number, layers: number, words: number): void
  runs(
    ...args: [base: number, layers: number, words: number, pages: number, gap: number, out: number, room: number]
  ): number
}

let instance: SnapshotModule | undefined

export function snapshotModule(): SnapshotModule {
  instance ??= instantiateWasm<SnapshotModule>('snapshot')
  return instance
}

/** A piece of the module's memory. */
export interface Room {
  readonly wasm: SnapshotModule
  /** Where it is. */
  readonly base: number
  readonly bytes: Uint8Array
}

/** Everybody has the same, so it is good until the next call. */
export function roomFor(bytes: number): Room {
  const wasm = snapshotModule()
  const base = wasm.room(bytes)
  return { wasm, base, bytes: new Uint8Array(wasm.memory.buffer, base, bytes) }
}
