/**
 * Page-aligned buffers. The kernel copies to and from them up to three times as fast as with an ordinary ArrayBuffer,
 * which starts 16 bytes into a page (1 MiB reads from the page cache: 0.18 ms against 0.57 ms).
 */
import { addressOf } from './libc.ts'

const PAGE = 4096

/** `length` zeros at a page boundary. The memory behind never moves, since it is larger than V8 moves. */
export function alignedBytes(length: number): Uint8Array {
  const whole = new Uint8Array(length + PAGE)
  const skip = (PAGE - (addressOf(whole) % PAGE)) % PAGE
  return whole.subarray(skip, skip + length)
}
