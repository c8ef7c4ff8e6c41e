/** Disk layers: QCOW2 files that are never written again, each on the one below, the lowest on the image's ext4. */
import { constants } from 'node:fs'
import { basename, dirname } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { HostError } from '../host/errors.ts'
import { closeFd, openFd, readAt } from '../host/file.ts'
import { seekData, seekEnd } from '../host/seek.ts'
import { readHeader } from '../qcow2/header.ts'
import { resolveBacking } from '../qcow2/open.ts'
import { FileStorage } from '../qcow2/storage.ts'
import { SnapshotError } from './errors.ts'
import { CHUNK, hash64, hashText } from './hash.ts'

/** Size of the disk, and what it stands on, from its header alone. */
export function diskHeader(path: string): { bytes: number; backing: string | undefined } {
  const storage = new FileStorage(openExisting(path))
  try {
    const { size, backingFile } = readHeader(storage, path)
    return { bytes: size, backing: backingFile === undefined ? undefined : resolveBacking(path, backingFile) }
  } finally {
    storage.close()
  }
}

function openExisting(path: string): number {
  try {
    return openFd(path, constants.O_RDONLY)
  } catch (error) {
    if (!(error instanceof HostError && error.code === 'ENOENT')) throw error
    throw new SnapshotError('MISSING_PARENT', `the disk ${path} is gone: what stands on it cannot be used`)
  }
}

const ZEROS = new Uint8Array(CHUNK)
/** A chain that is deeper is a loop. */
const MAX_CHAIN = 1000

/** The layers below and including `top`, bottom first, and the file that all of them stand on. */
export function diskChain(top: string, layers: string): { files: string[]; base: string | undefined } {
  const files: string[] = []
  let path: string | undefined = top
  while (path !== undefined && dirname(path) === layers) {
    if (files.length >= MAX_CHAIN || files.includes(basename(path)))
      throw new SnapshotError('CORRUPT', `${top} has a chain of backing files without an end: remove what uses it`)
    files.unshift(basename(path))
    path = diskHeader(path).backing
  }
  return { files, base: path }
}

/** The checksum of a file's contents: of its chunks of 1 MiB that are not holes, each with its number. */
export async function fileSum(path: string): Promise<{ sum: string; bytes: number }> {
  const fd = openExisting(path)
  try {
    const bytes = seekEnd(fd)
    const chunk = new Uint8Array(CHUNK)
    const list: bigint[] = []
    for (let at = 0; at < bytes; ) {
      const data = seekData(fd, at)
      if (data < 0) break
      const start = data - (data % CHUNK)
      const got = readAt(fd, chunk.subarray(0, Math.min(CHUNK, bytes - start)), start)
      const part = chunk.subarray(0, got)
      // A file that was copied may have zeros in place of holes.
      if (Buffer.compare(part, ZEROS.subarray(0, got)) !== 0) list.push(BigInt(start / CHUNK), hash64(part))
      at = start + CHUNK
      if (list.length % 32 === 0) await turn()
    }
    return { sum: hashText(new Uint8Array(BigUint64Array.from([BigInt(bytes), ...list]).buffer)), bytes }
  } finally {
    closeFd(fd)
  }
}

/** The checksum of the superblock of an ext4 file system, which holds its UUID (ext4: 1,024 bytes in). */
export function superblockSum(path: string): { sum: string; bytes: number } {
  const fd = openExisting(path)
  try {
    const superblock = new Uint8Array(1024)
    readAt(fd, superblock, 1024)
    return { sum: hashText(superblock), bytes: seekEnd(fd) }
  } finally {
    closeFd(fd)
  }
}
