/**
 * The benchmark command.
 *
 *   npm run bench                                    lists the benchmarks
 *   npm run bench -- NAME [--runs N] [--json FILE]   runs one; the table goes to standard output
 *                         [--only PART,PART]         only parts of its work, where it has parts
 *                         [--amd-host]               inside the emulated AMD host, guests on KVM
 */
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { findBenchmarks, loadBenchmark } from './harness/find.ts'
import { hostFacts } from './harness/host.ts'
import { runBenchmark } from './harness/run.ts'
import { formatTable } from './harness/table.ts'

function fail(message: string): never {
  console.error(`bench: ${message}`)
  process.exit(2)
}

function readArguments() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        runs: { type: 'string' },
        json: { type: 'string' },
        only: { type: 'string' },
        'amd-host': { type: 'boolean' },
      },
    })
  } catch (error) {
    fail(error instanceof Error ? error.message : String(error))
  }
}

const { values, positionals } = readArguments()
const benchmarks = findBenchmarks(fileURLToPath(new URL('.', import.meta.url)))
const [name, ...rest] = positionals

if (name === undefined) {
  const width = Math.max(0, ...[...benchmarks.keys()].map(key => key.length))
  for (const [key, file] of benchmarks) console.log(`${key.padEnd(width)}  ${(await loadBenchmark(file)).summary}`)
  process.exit(0)
}
if (rest.length > 0) fail(`one benchmark at a time; '${rest[0]}' is one too many`)
const file = benchmarks.get(name)
if (file === undefined) fail(`there is no benchmark '${name}': one of ${[...benchmarks.keys()].join(', ')}`)
const runs = values.runs === undefined ? undefined : Number(values.runs)
if (runs !== undefined && !(Number.isInteger(runs) && runs >= 1)) fail(`--runs takes a whole number from 1 on`)

if (values['amd-host']) {
  const { benchInAmdHost } = await import('./harness/in-amd-host.ts')
  const options = [...(values.runs ? ['--runs', values.runs] : []), ...(values.only ? ['--only', values.only] : [])]
  process.exit(await benchInAmdHost([name, ...options], values.json, message => console.error(`${name}: ${message}`)))
}

const benchmark = await loadBenchmark(file)
const report = await runBenchmark(benchmark, {
  name,
  ...(runs === undefined ? {} : { runs }),
  only: values.only?.split(','),
  host: hostFacts(),
  log: message => console.error(`${name}: ${message}`),
})
console.log(formatTable(report))
if (values.json !== undefined) writeFileSync(values.json, `${JSON.stringify(report, null, 2)}\n`)
