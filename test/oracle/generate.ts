/** Cases from a seed: case `i` of a batch is one instruction of a family picked at random. */
import { Builder } from './builder.ts'
import { Batch } from './case.ts'
import { Random } from './random.ts'
import type { Shape } from './shape.ts'
import { INTEGER_SHAPES } from './shapes-integer.ts'
import { SEQUENCE_SHAPES } from './shapes-sequence.ts'
import { VECTOR_SHAPES } from './shapes-vector.ts'
import { X87_SHAPES } from './shapes-x87.ts'

export const SETS: Readonly<Record<string, readonly Shape[]>> = {
  integer: INTEGER_SHAPES,
  sequence: SEQUENCE_SHAPES,
  x87: X87_SHAPES,
  vector: VECTOR_SHAPES,
}

/** A batch of `count` cases of the families whose set or name contains one of `filters` (all of them when empty). */
export function generate(seed: number, count: number, filters: readonly string[] = []): Batch {
  const shapes = shapesFor(filters)
  const random = new Random(seed)
  const batch = new Batch(count)
  for (let i = 0; i < count; i++) {
    let shape = random.pick(shapes)
    while (shape.rare && !random.once(10)) shape = random.pick(shapes)
    const builder = new Builder(batch, i, random)
    shape.build(builder)
    builder.finish(shape.name)
  }
  return batch
}

function shapesFor(filters: readonly string[]): readonly Shape[] {
  const all = Object.entries(SETS)
  if (filters.length === 0) return all.flatMap(([, shapes]) => shapes)
  const chosen = all.flatMap(([set, shapes]) =>
    shapes.filter(shape => filters.some(f => f === set || shape.name.includes(f))),
  )
  if (chosen.length === 0)
    throw new Error(`no instructions match ${filters.join(', ')}; sets: ${Object.keys(SETS).join(', ')}`)
  return chosen
}
