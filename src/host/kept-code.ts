/**
 * Bytecode of what a program has used, kept in the home. V8 compiles a function when it is first called; for what the start of a box calls that takes longer than
 * running it. So the first process of a build that has done what others will do leaves what V8 compiled, and the loader (`scripts/precompile.ts`) hands it
 * to V8 when the program is loaded again. V8 takes in only what was made by the same version with the same flags.
 *
 *   what V8 made | a byte: for which uses (`CODE_USE`)
 *
 * The first process that does something else than those before it leaves what it began with and what it compiled on top.
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

/** What a program is started for, as far as it calls other functions then: a VMM goes on from a template, as most do, or from a snapshot of a box. */
export const CODE_USE = { usual: 1, snapshot: 2 } as const
export type CodeUse = (typeof CODE_USE)[keyof typeof CODE_USE]

/** What the loader says of the bundle that this process runs. */
interface LoadedBundle {
  readonly script: Script
  /** Where its code is kept; a hash of the bundle is in the name. */
  readonly path: string
  /** For which uses there was code when it began. */
  uses: number
}

const loaded = (): LoadedBundle | undefined =>
  (globalThis as { [key: symbol]: LoadedBundle | undefined })[Symbol.for('vitrine.bundle')]

/** Code of builds that nobody may use any more. */
const OLD_MS = 30 * 24 * 3600 * 1000

/** Keeps what was compiled so far, unless that was done before for this use. Takes some 15 ms then; that it cannot be done is no loss. */
export function keepCode(use: CodeUse): void {
  const bundle = loaded()
  if (!bundle || (bundle.uses & use) !== 0) return
  bundle.uses |= use
  const temporary = `${bundle.path}.${process.pid}`
  try {
    // In a home that is there: one that was removed meanwhile stays so.
    if (!existsSync(dirname(bundle.path))) mkdirSync(dirname(bundle.path), { mode: 0o700 })
    removeOld(dirname(bundle.path))
    write(temporary, Buffer.concat([bundle.script.createCachedData(), Uint8Array.of(bundle.uses)]))
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
