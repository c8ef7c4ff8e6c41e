/**
 * The CMOS clock (MC146818A), as kernels read it at boot to learn the date: the host's time in UTC, BCD, 24 hours. Setting the
 * time is accepted and has no effect; there are no alarms.
 */
import { LEGACY, legacyWords } from '../shared-layout.ts'
import { type SavedWords, saveWords, validWords } from './saved-words.ts'

const INDEX = 0
const CONTROL_B = 1
const WORDS = 2

const REGISTER_A = 0x0a
const REGISTER_B = 0x0b
const REGISTER_D = 0x0d
const CENTURY = 0x32
/** 32.768 kHz time base, 1024 Hz rate, no update in progress. */
const A_VALUE = 0x26
const B_24_HOURS = 0x02
const B_BINARY = 0x04
/** The battery is good. */
const D_VALUE = 0x80

export class Rtc {
  readonly #words: Int32Array
  readonly #now: () => Date

  constructor(wasm: WebAssembly.Memory, now: () => Date = () => new Date()) {
    this.#words = legacyWords(wasm, LEGACY.rtc, WORDS)
    this.#now = now
  }

  reset(): void {
    this.#words[INDEX] = 0
    this.#words[CONTROL_B] = B_24_HOURS
  }

  /** Bit 7 masks NMIs; there are none to mask. */
  select(value: number): void {
    this.#words[INDEX] = value & 0x7f
  }

  write(value: number): void {
    // 24 hours always; the other mode and interrupts cannot be had.
    if (this.#words[INDEX] === REGISTER_B) this.#words[CONTROL_B] = (value & B_BINARY) | B_24_HOURS
  }

  read(): number {
    const now = this.#now()
    switch (this.#words[INDEX]) {
      case 0x00:
        return this.#digits(now.getUTCSeconds())
      case 0x02:
        return this.#digits(now.getUTCMinutes())
      case 0x04:
        return this.#digits(now.getUTCHours())
      case 0x06:
        return this.#digits(now.getUTCDay() + 1)
      case 0x07:
        return this.#digits(now.getUTCDate())
      case 0x08:
        return this.#digits(now.getUTCMonth() + 1)
      case 0x09:
        return this.#digits(now.getUTCFullYear() % 100)
      case CENTURY:
        return this.#digits(Math.floor(now.getUTCFullYear() / 100))
      case REGISTER_A:
        return A_VALUE
      case REGISTER_B:
        return this.#words[CONTROL_B]!
      case REGISTER_D:
        return D_VALUE
      default:
        return 0
    }
  }

  save(): SavedWords {
    return saveWords(this.#words)
  }

  restore(saved: unknown): void {
    this.#words.set(validWords('rtc', saved, WORDS, value => value >= 0 && value <= 0x7f))
  }

  #digits(value: number): number {
    if ((this.#words[CONTROL_B]! & B_BINARY) !== 0) return value
    return (Math.floor(value / 10) << 4) | (value % 10)
  }
}
