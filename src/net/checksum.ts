/** The internet checksum (RFC 1071) and the pseudo-headers that TCP, UDP and ICMPv6 add to it (RFC 9293, 8200). */
import type { IoVector } from '../host/io-vector.ts'
import { instantiateWasm } from '../wasm/loader.ts'
import { isMapped } from './addresses.ts'

interface ChecksumModule {
  readonly memory: WebAssembly.Memory
  buffer(): number
  sum(length: number): number
}

let module: ChecksumModule | undefined
let room: Uint8Array = new Uint8Array(0)
const LARGE = 256

function load(): ChecksumModule {
  if (module === undefined) {
    module = instantiateWasm<ChecksumModule>('checksum')
    const base = module.buffer()
    room = new Uint8Array(module.memory.buffer, base)
  }
  return module
}

export function fold(sum: number): number {
  let folded = sum
  while (folded > 0xffff) folded = (folded & 0xffff) + Math.floor(folded / 0x1_0000)
  return folded
}

/** The sum of `length` bytes at `from`, added to `start`; folded, not inverted. */
export function sumBytes(bytes: Uint8Array, from: number, length: number, start = 0): number {
  if (length >= LARGE) {
    const wasm = load()
    room.set(bytes.subarray(from, from + length))
    return fold(start + wasm.sum(length))
  }
  let sum = start
  const even = from + (length & ~1)
  for (let i = from; i < even; i += 2) sum += (bytes[i]! << 8) | bytes[i + 1]!
  if (length & 1) sum += bytes[even]! << 8
  return fold(sum)
}

/** The same over `length` bytes of a scattered list from byte `from` on; at most a frame's worth. */
export function sumVector(vector: IoVector, from: number, length: number, start = 0): number {
  const wasm = load()
  vector.copyTo(room.subarray(0, length), from)
  return fold(start + wasm.sum(length))
}

/** Source, destination, length and protocol, as they are added to a transport checksum. */
export function pseudoSum(source: Uint8Array, destination: Uint8Array, protocol: number, length: number): number {
  let sum = protocol + (length >>> 16) + (length & 0xffff)
  for (let i = isMapped(source) ? 12 : 0; i < 16; i += 2) {
    sum += ((source[i]! + destination[i]!) << 8) + source[i + 1]! + destination[i + 1]!
  }
  return fold(sum)
}

export const invert = (sum: number): number => ~sum & 0xffff
