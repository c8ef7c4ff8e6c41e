/** Runs seeds through both sides and gathers what differs. */
import { BATCH_MAX, STATE_SIZE } from './case.ts'
import { describe, differences } from './compare.ts'
import { generate } from './generate.ts'
import type { Native } from './native.ts'
import type { Soft } from './soft.ts'

export interface OracleResult {
  readonly cases: number
  readonly different: number
  /** Cases by the vector that ended them: 3 is an instruction that completed. */
  readonly vectors: ReadonlyMap<number, number>
  /** Differences by instruction family, and the first few in full. */
  readonly byName: ReadonlyMap<string, number>
  readonly examples: readonly string[]
}

export interface OracleOptions {
  readonly seed: number
  readonly count: number
  readonly filters?: readonly string[]
  /** How many differences to describe in full, at most one a family. */
  readonly examples?: number
  readonly onBatch?: (done: number, different: number) => void
}

export function runOracle(native: Native, soft: Soft, options: OracleOptions): OracleResult {
  const byName = new Map<string, number>()
  const vectors = new Map<number, number>()
  const examples: string[] = []
  let different = 0
  let done = 0
  for (let batchIndex = 0; done < options.count; batchIndex++) {
    const count = Math.min(BATCH_MAX, options.count - done)
    const seed = (options.seed + batchIndex * 0x1000193) >>> 0
    const batch = generate(seed, count, options.filters ?? [])
    const theirs = native.run(batch)
    const ours = soft.run(batch)
    for (let i = 0; i < count; i++) {
      const a = new DataView(ours.buffer, ours.byteOffset + i * STATE_SIZE, STATE_SIZE)
      const b = new DataView(theirs.buffer, theirs.byteOffset + i * STATE_SIZE, STATE_SIZE)
      const vector = b.getUint32(144, true)
      vectors.set(vector, (vectors.get(vector) ?? 0) + 1)
      const info = batch.infos[i]!
      const found = differences(info, a, b)
      if (found.length === 0) continue
      different++
      const seen = byName.get(info.name) ?? 0
      byName.set(info.name, seen + 1)
      if (seen === 0 && examples.length < (options.examples ?? 10))
        examples.push(`seed ${seed} case ${i}: ${describe(batch, i, found)}`)
    }
    done += count
    options.onBatch?.(done, different)
  }
  return { cases: done, different, vectors, byName, examples }
}
