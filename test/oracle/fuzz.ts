/** `npm run fuzz -- cpu`: a million instructions and more, on both sides. */
import { parseArgs } from 'node:util'
import { SETS } from './generate.ts'
import { Native, nativeUnavailable } from './native.ts'
import { runOracle } from './run.ts'
import { Soft } from './soft.ts'

const DEFAULT_COUNT = 1_000_000

export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      seed: { type: 'string', default: '1' },
      count: { type: 'string', default: String(DEFAULT_COUNT) },
      only: { type: 'string', multiple: true, default: [] },
      examples: { type: 'string', default: '10' },
      tier: { type: 'string', default: 'interpreter' },
    },
  })
  const reason = nativeUnavailable()
  if (reason) {
    console.error(`fuzz: the processor cannot be asked: ${reason}`)
    return false
  }
  const [seed, count, examples] = [values.seed, values.count, values.examples].map(Number) as [number, number, number]
  if (![seed, count, examples].every(Number.isInteger) || count < 1) {
    console.error('fuzz: --seed, --count and --examples take whole numbers')
    return false
  }
  if (values.tier !== 'interpreter' && values.tier !== 'compiler') {
    console.error('fuzz: --tier is interpreter or compiler')
    return false
  }
  using native = new Native()
  const soft = new Soft(values.tier)
  const started = Date.now()
  const result = runOracle(native, soft, {
    seed,
    count,
    filters: values.only,
    examples,
    onBatch: (done, different) => {
      const seconds = (Date.now() - started) / 1000
      process.stdout.write(`\r${done} instructions, ${different} different, ${Math.round(done / seconds)} a second `)
    },
  })
  process.stdout.write('\n')
  for (const example of result.examples) console.log(`\n${example}`)
  const families = Object.values(SETS).reduce((sum, shapes) => sum + shapes.length, 0)
  const faults = [...result.vectors].sort(([a], [b]) => a - b)
  console.log(`\nseed ${seed}: ${result.cases} instructions of ${families} families, ${result.different} different`)
  console.log(
    `ended by: ${faults.map(([vector, n]) => `${vector === 3 ? 'completion' : `vector ${vector}`} ${n}`).join(', ')}`,
  )
  if (values.tier === 'compiler') console.log(`compiled code was entered ${soft.compiledEntries} times`)
  if (result.byName.size > 0)
    console.log(
      [...result.byName]
        .sort((a, b) => b[1] - a[1])
        .map(([name, n]) => `  ${name}: ${n}`)
        .join('\n'),
    )
  return result.different === 0
}
