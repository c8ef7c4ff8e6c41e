/** Whole-buffer reads and writes on an image, through the scatter lists that the engine takes. */
import { IoVector } from '../../host/io-vector.ts'
import type { BlockImage } from '../block-image.ts'

export function readDisk(image: BlockImage, offset: number, length: number): Uint8Array {
  const bytes = new Uint8Array(Math.max(length, 128))
  const vector = new IoVector(bytes, 4)
  vector.push(0, length)
  image.readv(offset, vector)
  return bytes.subarray(0, length)
}

/** Writes `bytes`, in `pieces` segments that are out of order in memory. */
export function writeDisk(image: BlockImage, offset: number, bytes: Uint8Array, pieces = 1): void {
  const memory = new Uint8Array(Math.max(bytes.length, 128))
  const vector = new IoVector(memory, pieces)
  const step = Math.ceil(bytes.length / pieces)
  let end = bytes.length
  for (let at = 0; at < bytes.length; at += step) {
    const piece = bytes.subarray(at, Math.min(bytes.length, at + step))
    end -= piece.length
    memory.set(piece, end)
    vector.push(end, piece.length)
  }
  image.writev(offset, vector)
}
