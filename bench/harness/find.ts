/** Finds benchmarks by file name: `bench/NAME.bench.ts` and `bench/NAME/NAME.bench.ts`. */
import { readdirSync } from 'node:fs'
import { basename, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Benchmark } from './benchmark.ts'

const SUFFIX = '.bench.ts'

/** The benchmarks below `folder`, as name and file, sorted by name. */
export function findBenchmarks(folder: string): Map<string, string> {
  const found = new Map<string, string>()
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile() || !entry.name.endsWith(SUFFIX)) continue
    const name = basename(entry.name, SUFFIX)
    const file = join(entry.parentPath, entry.name)
    const other = found.get(name)
    if (other !== undefined) throw new Error(`two benchmarks are called '${name}': ${other} and ${file}`)
    found.set(name, file)
  }
  return new Map([...found].sort(([a], [b]) => (a < b ? -1 : 1)))
}

export async function loadBenchmark(file: string): Promise<Benchmark> {
  const module = (await import(pathToFileURL(file).href)) as { benchmark?: Benchmark }
  if (!module.benchmark) throw new Error(`${file} does not export 'benchmark'`)
  return module.benchmark
}
