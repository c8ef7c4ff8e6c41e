/**
 * Bytecode of what a program has used, kept in the home. V8 compiles a function when it is first called; for what the start of a box calls that takes longer than
 * running it. So the first process of a build that has done what others will do leaves what V8 compiled, and the loader (`scripts/precompile.ts`) hands it
 * to V8 when the program is loaded again. V8 takes in only what was made by the same version with the same flags.
 */
import {
  closeSync,
  existsSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import type { Script } from 'node:vm'

/** What the loader says of the bundle that this process runs. */
interface LoadedBundle {
  readonly script: Script
  /** Where its code is kept; a hash of the bundle is in the name. */
  readonly path: string
  /** Whether it began with what is there. */
  isKept: boolean
}

const loaded = (): LoadedBundle | undefined =>
  (globalThis as { [key: symbol]: LoadedBundle | undefined })[Symbol.for('vitrine.bundle')]

/** Code of builds that nobody may use any more. */
const OLD_MS = 30 * 24 * 3600 * 1000

/** Keeps what was compiled so far, unless that was done before. Takes some 15 ms then; that it cannot be done is no loss. */
export function keepCode(): void {
  const bundle = loaded()
  if (!bundle || bundle.isKept) return
  bundle.isKept = true
  const temporary = `${bundle.path}.${process.pid}`
  try {
    // In a home that is there: one that was removed meanwhile stays so.
    if (!existsSync(dirname(bundle.path))) mkdirSync(dirname(bundle.path), { mode: 0o700 })
    removeOld(dirname(bundle.path))
    write(temporary, bundle.script.createCachedData())
    renameSync(temporary, bundle.path)
  } catch {
    rmSync(temporary, { force: true })
  }
}

/** V8 does not look whether all of it is there: after a power cut, the file is whole or absent. */
function write(path: string, code: Uint8Array): void {
  const fd = openSync(path, 'w', 0o600)
  try {
    for (let at = 0; at < code.length; ) at += writeSync(fd, code, at)
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

function removeOld(folder: string): void {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name)
    if (Date.now() - statSync(path).mtimeMs > OLD_MS) rmSync(path, { force: true })
  }
}
