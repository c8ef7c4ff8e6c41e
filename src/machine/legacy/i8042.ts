/** The keyboard controller, as far as it matters without a keyboard: kernels reset the machine through it. */
import { LEGACY, legacyWords } from '../shared-layout.ts'
import { type SavedWords, saveWords, validWords } from './saved-words.ts'

const COMMAND_BYTE = 0
const OUTPUT = 1
const OUTPUT_FULL = 2
/** The command whose parameter the next write to the data port is, or 0. */
const AWAITED = 3
const WORDS = 4

const STATUS_OUTPUT_FULL = 1
const STATUS_SYSTEM = 4
const READ_COMMAND_BYTE = 0x20
const WRITE_COMMAND_BYTE = 0x60
const SELF_TEST = 0xaa
const READ_OUTPUT_PORT = 0xd0
const WRITE_OUTPUT_PORT = 0xd1
const PULSE_RESET = 0xfe
/** Output port: reset line high (not asserted), A20 on. */
const OUTPUT_PORT = 0x03

export class I8042 {
  readonly #words: Int32Array

  constructor(wasm: WebAssembly.Memory) {
    this.#words = legacyWords(wasm, LEGACY.i8042, WORDS)
  }

  reset(): void {
    this.#words.fill(0)
  }

  readStatus(): number {
    return STATUS_SYSTEM | (this.#words[OUTPUT_FULL] !== 0 ? STATUS_OUTPUT_FULL : 0)
  }

  readData(): number {
    this.#words[OUTPUT_FULL] = 0
    return this.#words[OUTPUT]!
  }

  /** True when the guest asked for a reset. */
  writeCommand(value: number): boolean {
    const words = this.#words
    words[AWAITED] = 0
    if (value === PULSE_RESET) return true
    if (value === READ_COMMAND_BYTE) this.#answer(words[COMMAND_BYTE]!)
    else if (value === SELF_TEST) this.#answer(0x55)
    else if (value === READ_OUTPUT_PORT) this.#answer(OUTPUT_PORT)
    else if (value === WRITE_COMMAND_BYTE || value === WRITE_OUTPUT_PORT) words[AWAITED] = value
    return false
  }

  /** True when the guest asked for a reset: bit 0 of the output port is the reset line, active low. */
  writeData(value: number): boolean {
    const words = this.#words
    const command = words[AWAITED]
    words[AWAITED] = 0
    if (command === WRITE_COMMAND_BYTE) words[COMMAND_BYTE] = value
    return command === WRITE_OUTPUT_PORT && (value & 1) === 0
  }

  save(): SavedWords {
    return saveWords(this.#words)
  }

  restore(saved: unknown): void {
    this.#words.set(validWords('i8042', saved, WORDS, value => value >= 0 && value <= 0xff))
  }

  #answer(value: number): void {
    this.#words[OUTPUT] = value
    this.#words[OUTPUT_FULL] = 1
  }
}
