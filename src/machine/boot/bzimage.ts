/**
 * bzImages: the compressed ELF inside, and what the header promises. Documentation/arch/x86/boot.rst.
 *
 * The payload is decompressed on the host and the ELF booted directly, which spares the guest the work.
 */
import { MachineError } from '../errors.ts'

const SETUP_SECTS = 0x1f1
const BOOT_FLAG = 0x1fe
const HEADER_MAGIC = 0x202
const VERSION = 0x206
const XLOADFLAGS = 0x236
const PAYLOAD_OFFSET = 0x248
const PAYLOAD_LENGTH = 0x24c
const INIT_SIZE = 0x260
const HEADER_END = 0x264
const XLF_KERNEL_64 = 1
const MIN_VERSION = 0x20c

export interface BzImage {
  readonly payload: Uint8Array
  /** What the decompressed kernel needs at most, from the header: a bound on the decompressor's output. */
  readonly initSize: number
  readonly protocol: number
}

const bad = (what: string): MachineError => new MachineError('BAD_KERNEL', `the kernel ${what}`)
const damaged = (what: string): MachineError => bad(`${what}; fetch or build it again`)

export function isBzImage(image: Uint8Array): boolean {
  if (image.length < HEADER_END) return false
  const view = new DataView(image.buffer, image.byteOffset, image.byteLength)
  return view.getUint16(BOOT_FLAG, true) === 0xaa55 && view.getUint32(HEADER_MAGIC, true) === 0x53726448
}

export function parseBzImage(image: Uint8Array): BzImage {
  if (!isBzImage(image)) throw bad('is not a bzImage')
  const view = new DataView(image.buffer, image.byteOffset, image.byteLength)
  const protocol = view.getUint16(VERSION, true)
  if (protocol < MIN_VERSION) {
    throw bad(`speaks boot protocol ${protocol >> 8}.${protocol & 0xff}; 2.12 (Linux 3.8) or later is needed`)
  }
  if ((view.getUint16(XLOADFLAGS, true) & XLF_KERNEL_64) === 0) {
    throw bad('is a 32-bit bzImage: give a 64-bit one')
  }
  // Zero means four, for the sake of very old loaders.
  const setupSects = image[SETUP_SECTS] || 4
  const start = (setupSects + 1) * 512 + view.getUint32(PAYLOAD_OFFSET, true)
  const length = view.getUint32(PAYLOAD_LENGTH, true)
  if (length < 16) throw damaged(`is corrupt: its payload has ${length} bytes`)
  if (start + length > image.length) {
    throw damaged(`is truncated: its payload ends at ${start + length}, the file at ${image.length}`)
  }
  return { payload: image.subarray(start, start + length), initSize: view.getUint32(INIT_SIZE, true), protocol }
}
