/** From the bytes of a kernel file, whatever its form, to an ELF kernel that can be loaded. */
import { MachineError } from '../errors.ts'
import { isBzImage, parseBzImage } from './bzimage.ts'
import { compressionOf, decompress } from './decompress/decompress.ts'
import { type ElfKernel, isElf, parseElf } from './elf.ts'
import { BytesSource, FileSource } from './kernel-source.ts'

/** No kernel is larger; a bound for decompressors that are given a hostile file. */
export const MAX_KERNEL_SIZE = 512 * 1024 * 1024

/** A kernel file: an ELF file is loaded from where it is; anything else is decompressed first. */
export interface KernelFile {
  readonly path: string
  /** The file is ours and never changes, so it may be mapped into guest memory. */
  readonly immutable?: boolean
}

/** The caller closes `source` of the result. */
export function openKernel(kernel: Uint8Array | KernelFile): ElfKernel {
  if (kernel instanceof Uint8Array) return parseKernel(kernel)
  const source = new FileSource(kernel.path, kernel.immutable === true)
  let image: Uint8Array
  try {
    if (isElf(source.read(0, 4))) return parseElf(source)
    if (source.size > MAX_KERNEL_SIZE) throw new MachineError('BAD_KERNEL', `${kernel.path} is too large for a kernel`)
    image = source.read(0, source.size)
  } catch (error) {
    source.close()
    throw error
  }
  source.close()
  return parseKernel(image)
}

export function parseKernel(image: Uint8Array): ElfKernel {
  return parseElf(new BytesSource(kernelElf(image)))
}

/** The ELF file inside: the bytes themselves, a bzImage's payload, or a compressed vmlinux. */
export function kernelElf(image: Uint8Array): Uint8Array {
  if (isElf(image)) return image
  if (isBzImage(image)) {
    const { payload, initSize } = parseBzImage(image)
    return decompressPayload(payload, initSize)
  }
  if (image.length === 0) throw new MachineError('BAD_KERNEL', 'the kernel file is empty: fetch or build it again')
  const compression = compressionOf(image)
  if (compression) {
    const inner = decompress(compression, image, MAX_KERNEL_SIZE)
    if (isElf(inner)) return inner
  }
  throw new MachineError(
    'BAD_KERNEL',
    'the kernel is neither an ELF vmlinux nor a bzImage: give one of those, for x86-64',
  )
}

function decompressPayload(payload: Uint8Array, initSize: number): Uint8Array {
  const compression = compressionOf(payload)
  if (!compression) {
    throw new MachineError(
      'BAD_KERNEL',
      'the payload of the bzImage is in no known compression: give one packed by LZ4, gzip, zstd or XZ',
    )
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
      throw new MachineError(
        'BAD_KERNEL',
        `the kernel decompressed to ${elf.length} bytes where its file says ${size}; fetch or build it again`,
      )
    }
  }
  if (!isElf(elf))
    throw new MachineError('BAD_KERNEL', 'the payload of the bzImage is not an ELF file: fetch or build it again')
  return elf
}
