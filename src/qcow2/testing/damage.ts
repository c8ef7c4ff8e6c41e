/** Damaged images: bytes and fields changed at random, then everything tried on the result. Only typed errors may come out. */
import { writeFileSync } from 'node:fs'
import { HostError } from '../../host/errors.ts'
import { checkDisk } from '../check.ts'
import { DiskError } from '../errors.ts'
import { HEADER } from '../layout.ts'
import { mapDisk } from '../map.ts'
import { openDisk } from '../open.ts'
import { readDisk, writeDisk } from './disk-io.ts'
import type { Random } from './random.ts'

/** What an action ended with: a typed error's code, or `none`. Anything else is passed on. */
export function codeOf(action: () => void): string {
  try {
    action()
  } catch (error) {
    if (error instanceof DiskError || error instanceof HostError) return error.code
    throw error
  }
  return 'none'
}

const FIELDS = Object.values(HEADER).filter(offset => offset > HEADER.version)
const VALUES = [
  0n,
  1n,
  511n,
  512n,
  4096n,
  65536n,
  1n << 31n,
  1n << 32n,
  1n << 40n,
  (1n << 53n) + 1n,
  1n << 62n,
  (1n << 64n) - 1n,
]

/** A copy of `whole` with some fields, table entries or bytes changed; the magic number stays. */
export function damaged(whole: Uint8Array, random: Random): Uint8Array {
  const bytes = Uint8Array.from(whole)
  const view = new DataView(bytes.buffer)
  const changes = 1 + random.below(5)
  for (let i = 0; i < changes; i++) {
    const kind = random.below(4)
    if (kind === 0) {
      const at = random.pick(FIELDS)
      if (random.chance(0.5)) view.setUint32(at, Number(random.pick(VALUES) & 0xffffffffn))
      else view.setBigUint64(at, random.pick(VALUES))
    } else if (kind === 1) {
      // An entry of some table, pointed to another cluster of the file or to nowhere.
      const at = Math.min(bytes.length - 8, 4096 + random.below(bytes.length / 8 - 520) * 8)
      const flags = BigInt(random.below(4)) << 62n
      view.setBigUint64(at, flags | (random.chance(0.7) ? BigInt(random.below(40) * 4096) : random.pick(VALUES)))
    } else {
      const at = 4 + random.below((kind === 2 ? 200 : bytes.length) - 4)
      bytes[at] = random.chance(0.5) ? random.below(256) : bytes[at]! ^ (1 << random.below(8))
    }
  }
  return bytes
}

/** Opens, reads, writes, maps, checks and repairs a damaged copy of `whole` at `path`; how many actions gave an error. */
export function tryDamaged(whole: Uint8Array, path: string, random: Random): number {
  const bytes = damaged(whole, random)
  const fresh = (action: () => void) => (): void => {
    writeFileSync(path, bytes)
    action()
  }
  const actions = [
    fresh(() => use(path, random)),
    fresh(() => void checkDisk(path)),
    fresh(() => void checkDisk(path, { repair: 'all' })),
    () => use(path, random),
  ]
  let errors = 0
  for (const action of actions) if (codeOf(action) !== 'none') errors++
  return errors
}

function use(path: string, random: Random): void {
  const image = openDisk(path, { format: 'qcow2' })
  const length = Math.min(image.sizeBytes, 65536)
  const steps = [
    () => readDisk(image, 0, length),
    () => writeDisk(image, 0, random.bytes(Math.min(512, length))),
    () => image.discard(0, length),
    () => image.flush(),
    () => {
      let entries = 0
      for (const _ of mapDisk(image)) if (++entries > 1000) break
    },
    () => image.close(),
  ]
  let first: unknown
  for (const step of steps) {
    try {
      step()
    } catch (error) {
      if (codeOf(() => rethrow(error)) !== 'none') first ??= error
    }
  }
  if (first !== undefined) throw first
}

function rethrow(error: unknown): never {
  throw error
}
