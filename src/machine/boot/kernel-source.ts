/**
 * Where a kernel's bytes come from: memory, or a file that is read, or mapped, straight into guest memory. Mapping is
 * copy-on-write: loading costs next to nothing, pages that the guest never writes are shared between all machines, and the
 * file must never change or shrink afterwards, which holds for the kernels of our cache.
 */
import { constants, fstatSync } from 'node:fs'
import { closeFd, openFd, readAt } from '../../host/file.ts'
import { mapPrivateOver } from '../../host/mapping.ts'
import type { GuestMemory } from '../../memory/guest-memory.ts'
import { MachineError } from '../errors.ts'

const PAGE = 4096

export interface KernelSource {
  readonly size: number
  /** `length` bytes from `offset`, or fewer where the file ends. */
  read(offset: number, length: number): Uint8Array
  /** Puts `length` bytes from `offset` at guest-physical `address`; the caller has checked both ranges. */
  load(memory: GuestMemory, address: number, offset: number, length: number): void
  close(): void
}

export class BytesSource implements KernelSource {
  readonly size: number
  readonly #bytes: Uint8Array

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes
    this.size = bytes.length
  }

  read(offset: number, length: number): Uint8Array {
    return this.#bytes.subarray(offset, offset + length)
  }

  load(memory: GuestMemory, address: number, offset: number, length: number): void {
    memory.write(address, this.read(offset, length))
  }

  close(): void {}
}

export class FileSource implements KernelSource {
  readonly size: number
  readonly #fd: number
  readonly #map: boolean

  /** `map`: the file is ours and never changes. */
  constructor(path: string, map: boolean) {
    try {
      this.#fd = openFd(path, constants.O_RDONLY)
    } catch (error) {
      throw new MachineError('BAD_KERNEL', `the kernel ${path} cannot be opened: ${(error as Error).message}`, {
        cause: error,
      })
    }
    this.#map = map
    const stats = fstatSync(this.#fd)
    this.size = stats.size
    if (!stats.isFile()) {
      this.close()
      throw new MachineError(
        'BAD_KERNEL',
        `the kernel ${path} cannot be read: it is no file; give a vmlinux or bzImage`,
      )
    }
  }

  read(offset: number, length: number): Uint8Array {
    const bytes = new Uint8Array(Math.max(0, Math.min(length, this.size - offset)))
    return bytes.subarray(0, readAt(this.#fd, bytes, offset))
  }

  load(memory: GuestMemory, address: number, offset: number, length: number): void {
    const to = memory.requireOffset(address, length)
    const whole = this.#map && to % PAGE === 0 && offset % PAGE === 0 ? length - (length % PAGE) : 0
    if (whole > 0) {
      mapPrivateOver(memory.bytes, to, whole, this.#fd, offset)
      memory.loaded.push({ offset: to, length: whole })
    }
    if (whole === length) return
    const rest = memory.slice(address + whole, length - whole)
    if (readAt(this.#fd, rest, offset + whole) !== rest.length) {
      throw new MachineError('BAD_KERNEL', 'the kernel became shorter while it was loaded')
    }
  }

  close(): void {
    closeFd(this.#fd)
  }
}
