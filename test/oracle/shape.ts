/** A family of instructions that the generator knows how to write. */
import type { Builder } from './builder.ts'

export interface Shape {
  readonly name: string
  /** Undefined opcodes: drawn a tenth as often. */
  readonly rare?: boolean
  /** Emits the instruction and prepares its operands. */
  readonly build: (b: Builder) => void
}

export const CF = 1
export const PF = 4
export const AF = 0x10
export const ZF = 0x40
export const SF = 0x80
export const OF = 0x800
export const ARITHMETIC = CF | PF | AF | ZF | SF | OF

/** Operand sizes: 1 (byte opcodes), 2 (66), 4, 8 (REX.W). */
export type Size = 1 | 2 | 4 | 8
export const SIZES: readonly Size[] = [1, 2, 4, 8]
export const WIDE_SIZES: readonly Size[] = [2, 4, 8]

export const sizePrefix = (size: Size): number[] => (size === 2 ? [0x66] : [])
