/** The legacy devices of a machine together: the main thread resets, saves and restores them while no vCPU runs. */
import { MachineError } from '../errors.ts'
import { CONSOLE_RING_SIZE, COUNTER, LEGACY, legacyWords } from '../shared-layout.ts'
import type { ConsoleOutput } from './console-output.ts'
import { ConsoleRing } from './console-ring.ts'
import { I8042 } from './i8042.ts'
import { Rtc } from './rtc.ts'
import { type SavedWords, validWords } from './saved-words.ts'
import { Serial } from './serial.ts'

export interface LegacyState {
  readonly serial: SavedWords
  readonly i8042: SavedWords
  readonly rtc: SavedWords
  /** What was typed and not yet read. */
  readonly input: SavedWords
}

export class LegacyDevices {
  readonly serial: Serial
  readonly i8042: I8042
  readonly rtc: Rtc
  readonly counters: Int32Array
  readonly #input: ConsoleRing

  constructor(wasm: WebAssembly.Memory, output: ConsoleOutput | undefined, raiseSerial: () => void) {
    this.serial = new Serial(wasm, output, raiseSerial)
    this.i8042 = new I8042(wasm)
    this.rtc = new Rtc(wasm)
    this.#input = ConsoleRing.input(wasm)
    this.counters = legacyWords(wasm, LEGACY.counters, Object.keys(COUNTER).length)
  }

  reset(): void {
    this.serial.reset()
    this.i8042.reset()
    this.rtc.reset()
    this.counters.fill(0)
  }

  save(): LegacyState {
    return {
      serial: this.serial.save(),
      i8042: this.i8042.save(),
      rtc: this.rtc.save(),
      input: Array.from(this.#input.peek()),
    }
  }

  restore(state: unknown): void {
    if (typeof state !== 'object' || state === null) {
      throw new MachineError('BAD_SAVED_STATE', 'there is no saved state of the legacy devices')
    }
    const { serial, i8042, rtc, input } = state as Partial<LegacyState>
    const size = Array.isArray(input) ? Math.min(input.length, CONSOLE_RING_SIZE) : 0
    const typed = validWords('the console input', input, size, value => value >= 0 && value <= 0xff)
    this.serial.restore(serial)
    this.i8042.restore(i8042)
    this.rtc.restore(rtc)
    this.#input.take()
    this.#input.write(Uint8Array.from(typed))
  }

  metrics(): Record<string, number> {
    return Object.fromEntries(Object.entries(COUNTER).map(([name, i]) => [name, Atomics.load(this.counters, i) >>> 0]))
  }
}
