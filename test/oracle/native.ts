/** The native side: compiles native.c once a process and runs batches through it. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Batch, STATE_SIZE } from './case.ts'

/** Why the host's processor cannot be asked, or undefined when it can. */
export function nativeUnavailable(): string | undefined {
  if (process.arch !== 'x64' || process.platform !== 'linux') return 'the host is not x86-64 Linux'
  if (spawnSync('gcc', ['--version']).status !== 0) return 'gcc is not installed'
  return undefined
}

export class Native implements Disposable {
  readonly #folder = mkdtempSync(join(tmpdir(), 'vitrine-oracle-'))
  readonly #program = join(this.#folder, 'native')

  constructor() {
    const source = fileURLToPath(new URL('native.c', import.meta.url))
    const { status, stderr } = spawnSync('gcc', ['-O2', '-o', this.#program, source], { encoding: 'utf8' })
    if (status !== 0) throw new Error(`native.c does not compile:\n${stderr}`)
  }

  /** The batch's records as the processor left them. */
  run(batch: Batch): Uint8Array {
    const file = join(this.#folder, 'cases')
    writeFileSync(file, batch.bytes.subarray(0, batch.length * STATE_SIZE))
    const { status, signal, stderr } = spawnSync(this.#program, [file], { encoding: 'utf8', timeout: 300_000 })
    if (status !== 0) throw new Error(`the native side ended with ${signal ?? status}: ${stderr}`)
    return readFileSync(file)
  }

  [Symbol.dispose](): void {
    rmSync(this.#folder, { recursive: true, force: true })
  }
}
