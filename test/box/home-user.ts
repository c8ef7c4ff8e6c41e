/**
 * Makes, finds, lists and removes boxes and images of a home at random until its time is over or it is killed: `home-user.ts HOME SEED
 * SECONDS`. Says how many operations it did, by kind. Errors that two users of one home must expect are part of it; any other ends it.
 */
import { Box } from '../../src/box/box.ts'
import { Home } from '../../src/box/home.ts'
import { Runtime } from '../../src/box/runtime.ts'
import { list } from '../../src/box/store.ts'
import { ImageStore } from '../../src/image/store.ts'
import { Random } from '../oracle/random.ts'

const EXPECTED = new Set(['NAME_IN_USE', 'NOT_FOUND', 'LOCKED'])
/** Few, so that both want the same ones. */
const NAMES = ['red', 'green', 'blue', 'black', undefined]

const [path, seed, seconds] = process.argv.slice(2)
const home = new Home(path!)
const runtime = new Runtime({ home: path! })
const random = new Random(Number(seed))
const pick = <T>(from: readonly T[]): T | undefined => from[random.below(from.length)]
const store = new ImageStore({ home: path! })
const disksInUse = (): Set<string> => new Set(list(home).map(({ baseDisk }) => baseDisk))

const OPERATIONS: Readonly<Record<string, () => Promise<unknown>>> = {
  create: async () => {
    const name = pick(NAMES)
    return Box.create({ image: 'base', diskGib: 1, ...(name === undefined ? {} : { name }) }, runtime)
  },
  remove: async () => pick(await Box.list(runtime))?.remove(),
  removeByName: async () => (await Box.get(pick(NAMES.slice(0, 4)) ?? 'red', runtime)).remove({ force: true }),
  rmi: () => store.remove('base', disksInUse),
  prune: () => store.prune({ keep: disksInUse, graceMs: 0, maxBytes: 0 }),
}
/** Twice as much is made as removed, so that there is something to remove. */
const TURNS = ['create', 'create', 'create', 'create', 'remove', 'remove', 'removeByName', 'rmi', 'prune'] as const

const counts: Record<string, number> = {}
process.stdout.write('\n') // a sign of life
for (const end = Date.now() + Number(seconds) * 1000; Date.now() < end; ) {
  const turn = pick(TURNS)!
  try {
    await OPERATIONS[turn]!()
    counts[turn] = (counts[turn] ?? 0) + 1
  } catch (error) {
    const { code } = error as { code?: string }
    if (!EXPECTED.has(code ?? '')) throw error
    counts[code!] = (counts[code!] ?? 0) + 1
  }
}
process.stdout.write(JSON.stringify(counts))
