/**
 * The kernels folder of the home directory. An entry is a folder that appears complete, by rename, or not at all; one
 * process at a time makes one, and the others wait for it.
 *
 *   home/kernels/
 *     debian-6.1.0-54-cloud-amd64_6.1.190-1/   vmlinux, modules/..., kernel.json
 *     tuned-<hash of the configuration>/       the same, without modules
 *     initramfs/<hash>.cpio
 *     .lock, .new-*                            being made
 */
import {
  closeSync,
  constants,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { lockExclusive } from '../../host/file-lock.ts'
import { KernelError } from './errors.ts'

const RETRY_MS = 100

/** Where everything is kept: `$VITRINE_HOME` if that says something, else `~/.vitrine`. */
export const defaultHome = (): string => process.env.VITRINE_HOME || join(homedir(), '.vitrine')

export const kernelsFolder = (home = defaultHome()): string => join(resolve(home), 'kernels')

/** Runs `work` while no other process is in the folder; waits its turn. */
export async function withFolderLock<T>(folder: string, work: () => Promise<T>, onWait?: () => void): Promise<T> {
  const path = join(folder, '.lock')
  let fd: number
  try {
    mkdirSync(folder, { recursive: true })
    fd = openSync(path, constants.O_RDWR | constants.O_CREAT, 0o644)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    throw new KernelError(
      'CACHE',
      `the kernel cache ${folder} cannot be used (${code}): set VITRINE_HOME to a directory that you may write to`,
      { cause: error },
    )
  }
  try {
    for (let waits = 0; !lockExclusive(fd, 0); waits++) {
      if (waits === 0) onWait?.()
      await new Promise(done => setTimeout(done, RETRY_MS))
    }
    return await work()
  } finally {
    // The lock ends with the descriptor.
    closeSync(fd)
  }
}

/** Fills a new folder and gives it its name when all went well; leaves nothing behind when not. With the lock held. */
export async function createEntry(
  folder: string,
  name: string,
  fill: (path: string) => Promise<void>,
): Promise<string> {
  const target = join(folder, name)
  if (existsSync(target)) return target
  // What a killed process left: nobody else is at work, since the lock is ours.
  for (const old of readdirSync(folder)) if (old.startsWith('.new-')) rmSync(join(folder, old), { recursive: true })
  const temporary = mkdtempSync(join(folder, '.new-'))
  try {
    await fill(temporary)
    renameSync(temporary, target)
  } catch (error) {
    rmSync(temporary, { recursive: true, force: true })
    throw error
  }
  return target
}
