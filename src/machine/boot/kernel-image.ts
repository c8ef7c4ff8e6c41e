/** From the bytes of a kernel file, whatever its form, to an ELF kernel that can be loaded. */
import { MachineError } from '../errors.ts'
import { isBzImage, parseBzImage } from './bzimage.ts'
import { compressionOf, decompress } from './decompress/decompress.ts'
import { type ElfKernel, isElf, parseElf } from './elf.ts'

/** No kernel is larger; a bound for decompressors that are given a hostile file. */
export const MAX_KERNEL_SIZE = 512 * 1024 * 1024

export function parseKernel(image: Uint8Array): ElfKernel {
  return parseElf(kernelElf(image))
}

/** The ELF file inside: the bytes themselves, a bzImage's payload, or a compressed vmlinux. */
export function kernelElf(image: Uint8Array): Uint8Array {
  if (isElf(image)) return image
  if (isBzImage(image)) {
    const { payload, initSize } = parseBzImage(image)
    return decompressPayload(payload, initSize)
  }
  if (image.length === 0) throw new MachineError('BAD_KERNEL', 'the kernel file is empty')
  const compression = compressionOf(image)
  if (compression) {
    const inner = decompress(compression, image, MAX_KERNEL_SIZE)
    if (isElf(inner)) return inner
  }
  throw new MachineError('BAD_KERNEL', 'the kernel is neither an ELF vmlinux nor a bzImage')
}

function decompressPayload(payload: Uint8Array, initSize: number): Uint8Array {
  const compression = compressionOf(payload)
  if (!compression) {
    throw new MachineError('BAD_KERNEL', 'the payload of the bzImage is in no known compression (LZ4, gzip, zstd, XZ)')
  }
  const limit = Math.min(MAX_KERNEL_SIZE, initSize === 0 ? MAX_KERNEL_SIZE : initSize)
  // All but gzip's have their size after them, four bytes that are no part of the stream (scripts/Makefile.lib, size_append).
  const appended = compression !== 'gzip'
  const stream = appended ? payload.subarray(0, payload.length - 4) : payload
  const elf = decompress(compression, stream, limit)
  if (appended) {
    const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength)
    const size = view.getUint32(payload.length - 4, true)
    if (elf.length !== size) {
      throw new MachineError('BAD_KERNEL', `the kernel decompressed to ${elf.length} bytes where its file says ${size}`)
    }
  }
  if (!isElf(elf)) throw new MachineError('BAD_KERNEL', 'the payload of the bzImage is not an ELF file')
  return elf
}
