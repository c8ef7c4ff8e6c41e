/**
 * Mappings placed over part of a shared WebAssembly memory: what is mapped there is seen by every thread through the
 * memory's own views, with no address and no lifetime of its own to manage.
 */
import { HostError } from './errors.ts'
import { addressOf, lastErrno, sys } from './libc.ts'

const PROT_READ = 1
const PROT_WRITE = 2
const MAP_SHARED = 0x01
const MAP_PRIVATE = 0x02
const MAP_FIXED = 0x10
const MAP_ANONYMOUS = 0x20
const MAP_NORESERVE = 0x4000

const PAGE = 4096

function mapFixed(memory: Uint8Array, offset: number, length: number, flags: number, fd: number, at: number): void {
  if (!(offset >= 0 && length > 0 && offset + length <= memory.length && offset % PAGE === 0 && length % PAGE === 0)) {
    throw new RangeError(`a mapping of ${length} bytes at ${offset} is not whole pages inside the memory`)
  }
  const address = addressOf(memory) + offset
  // Safe: the range is inside a WebAssembly memory, which V8 neither moves nor unmaps while `memory` is alive, and the
  // pages stay readable and writable, which is all that V8 relies on.
  const result = sys.mmap(address, length, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, at)
  if (Number(result) !== address) throw new HostError('mmap', lastErrno(), `over the shared memory at ${offset}`)
}

/** Maps `length` bytes of `fd` over the memory at `offset`, shared with whoever else maps them. */
export function mapSharedOver(memory: Uint8Array, offset: number, length: number, fd: number, position = 0): void {
  mapFixed(memory, offset, length, MAP_SHARED, fd, position)
}

/** Maps `length` bytes of `fd` over the memory at `offset`, copy-on-write. */
export function mapPrivateOver(memory: Uint8Array, offset: number, length: number, fd: number, position = 0): void {
  mapFixed(memory, offset, length, MAP_PRIVATE | MAP_NORESERVE, fd, position)
}

/** Puts fresh zero pages over the memory at `offset`: ends whatever was mapped there. */
export function unmapOver(memory: Uint8Array, offset: number, length: number): void {
  mapFixed(memory, offset, length, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
}
