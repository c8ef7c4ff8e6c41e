/** Where the writer of the kill test puts its writes. */
export const BLOCK = 4096
export const BLOCKS = 2048

/** All over the disk, and sometimes over what was there. */
export const blockOf = (number: number): number => (Math.imul(number, 0x9e37_79b1) >>> 5) % BLOCKS
