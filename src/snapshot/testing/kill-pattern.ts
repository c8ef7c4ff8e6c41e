/** What the two sides of the kill test agree on. */
import { Random } from '../../qcow2/testing/random.ts'

export const KILL_BOXES = ['aaaaaaaaaaaa', 'bbbbbbbbbbbb'] as const
export const KILL_RAM = 1 << 20

/** 32 KiB that only this version has. */
export const pattern = (version: number): Uint8Array => new Random(version).bytes(32_768)

/** Pages of memory that this version writes: the first always, so that the newest can be told. */
export const pagesOf = (version: number): number[] => [0, 1 + (version % 200), 201 + (version % 50)]
