/**
 * LZ4 legacy frames (lz4_Frame_format.md, "Legacy frame"), which is what the kernel's build makes: a magic number, then
 * blocks that each decompress to 8 MiB (the last to less). The hot loop is WebAssembly: wasm/lz4.
 */
import { instantiateWasm } from '../../../wasm/loader.ts'
import { corrupt, tooLarge } from './faults.ts'

interface Lz4Exports {
  readonly memory: WebAssembly.Memory
  decode(source: number, sourceSize: number, target: number, capacity: number): number
}

const MAGIC = 0x184c2102
const BLOCK_SIZE = 8 * 1024 * 1024
/** A block that does not compress grows a little: LZ4_COMPRESSBOUND. */
const MAX_BLOCK = BLOCK_SIZE + Math.ceil(BLOCK_SIZE / 255) + 16
const FULL = -2
const WASM_PAGE = 65536
/** The module's statics are below this. */
const BUFFERS = WASM_PAGE

export function unlz4(data: Uint8Array, limit: number): Uint8Array {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength)
  if (data.length < 8 || view.getUint32(0, true) !== MAGIC) throw corrupt('LZ4', 'it has no legacy frame header')
  const lz4 = instantiateWasm<Lz4Exports>('lz4')
  const source = BUFFERS
  const target = BUFFERS + Math.ceil(data.length / WASM_PAGE) * WASM_PAGE
  grow(lz4.memory, target)
  new Uint8Array(lz4.memory.buffer).set(data, source)
  let size = 0
  let at = 4
  while (at + 4 <= data.length) {
    const blockSize = view.getUint32(at, true)
    at += 4
    // Concatenated frames: the magic again.
    if (blockSize === MAGIC) continue
    if (blockSize === 0 || blockSize > MAX_BLOCK) throw corrupt('LZ4', `a block of ${blockSize} bytes at ${at - 4}`)
    if (at + blockSize > data.length) throw corrupt('LZ4', `it is truncated in the block at ${at - 4}`)
    const capacity = Math.min(BLOCK_SIZE, limit - size)
    grow(lz4.memory, target + size + capacity)
    const got = lz4.decode(source + at, blockSize, target + size, capacity)
    if (got === FULL && capacity < BLOCK_SIZE) throw tooLarge('LZ4', limit)
    if (got < 0) throw corrupt('LZ4', `the block at ${at - 4} is malformed`)
    size += got
    at += blockSize
  }
  if (at !== data.length) throw corrupt('LZ4', `${data.length - at} stray bytes at its end`)
  return new Uint8Array(lz4.memory.buffer, target, size)
}

function grow(memory: WebAssembly.Memory, bytes: number): void {
  const missing = Math.ceil((bytes - memory.buffer.byteLength) / WASM_PAGE)
  if (missing > 0) memory.grow(missing)
}
