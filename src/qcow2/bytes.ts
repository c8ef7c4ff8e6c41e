/** 64-bit big-endian integers as numbers. A value past 2^53 becomes one past MAX_OFFSET, which every caller refuses. */
import { TWO_32 } from './layout.ts'

export const getU64 = (view: DataView, at: number): number => view.getUint32(at) * TWO_32 + view.getUint32(at + 4)

export function setU64(view: DataView, at: number, value: number): void {
  view.setUint32(at, Math.floor(value / TWO_32))
  view.setUint32(at + 4, value % TWO_32)
}

export const viewOver = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

export const roundUp = (value: number, step: number): number => Math.ceil(value / step) * step

/** UTF-8 as text. */
export const textOf = (bytes: Uint8Array): string =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString()
