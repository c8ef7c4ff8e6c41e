/** The legacy devices of a machine together: the main thread resets, saves and restores them while no vCPU runs. */
import { MachineError } from '../errors.ts'
import { COUNTER, LEGACY, legacyWords } from '../shared-layout.ts'
import type { ConsoleOutput } from './console-output.ts'
import { I8042 } from './i8042.ts'
import { Rtc } from './rtc.ts'
import type { SavedWords } from './saved-words.ts'
import { Serial } from './serial.ts'

export interface LegacyState {
  readonly serial: SavedWords
  readonly i8042: SavedWords
  readonly rtc: SavedWords
}

export class LegacyDevices {
  readonly serial: Serial
  readonly i8042: I8042
  readonly rtc: Rtc
  readonly counters: Int32Array

  constructor(wasm: WebAssembly.Memory, output: ConsoleOutput | undefined, raiseSerial: () => void) {
    this.serial = new Serial(wasm, output, raiseSerial)
    this.i8042 = new I8042(wasm)
    this.rtc = new Rtc(wasm)
    this.counters = legacyWords(wasm, LEGACY.counters, Object.keys(COUNTER).length)
  }

  reset(): void {
    this.serial.reset()
    this.i8042.reset()
    this.rtc.reset()
    this.counters.fill(0)
  }

  save(): LegacyState {
    return { serial: this.serial.save(), i8042: this.i8042.save(), rtc: this.rtc.save() }
  }

  restore(state: unknown): void {
    if (typeof state !== 'object' || state === null) {
      throw new MachineError('BAD_SAVED_STATE', 'there is no saved state of the legacy devices')
    }
    const { serial, i8042, rtc } = state as Partial<LegacyState>
    this.serial.restore(serial)
    this.i8042.restore(i8042)
    this.rtc.restore(rtc)
  }

  metrics(): Record<string, number> {
    return Object.fromEntries(Object.entries(COUNTER).map(([name, i]) => [name, Atomics.load(this.counters, i) >>> 0]))
  }
}
