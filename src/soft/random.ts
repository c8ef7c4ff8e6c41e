/** The seed of RDRAND: from the host, or the same always in deterministic mode. */
import { randomBytes } from 'node:crypto'
import { S_RDRAND } from '../../wasm/cpu/state.ts'

const FIXED = 0x5649_5452_494e_4531n

export function seedRandom(view: DataView, base: number, deterministic: boolean): void {
  view.setBigUint64(base + S_RDRAND, deterministic ? FIXED : randomBytes(8).readBigUInt64LE(), true)
}
