/**
 * COM1: a 16550A (TI PC16550D data sheet). Output leaves at once, so the transmitter is always empty; input waits in the
 * console's ring, and reaches the receiver while the guest asserts RTS (or has not programmed the UART at all): a driver
 * that flushes the receiver while it starts up loses nothing that was typed before.
 *
 * All state is in shared memory, because any vCPU may touch it; the bus holds the lock around each call.
 */
import { LEGACY, legacyWords } from '../shared-layout.ts'
import type { ConsoleOutput } from './console-output.ts'
import { ConsoleRing } from './console-ring.ts'
import { type SavedWords, saveWords, validWords } from './saved-words.ts'

/** Words of the block. Loopback bytes are kept in a FIFO of their own, from word 16. */
const IER = 0
const LCR = 1
const MCR = 2
const SCR = 3
const DLL = 4
const DLM = 5
const FIFO_ON = 6
const THRE_PENDING = 7
const PROGRAMMED = 8
const LOOP_COUNT = 9
const LOOP_BYTES = 16
const FIFO_SIZE = 16
const WORDS = LOOP_BYTES + FIFO_SIZE

const IER_RECEIVE = 1
const IER_TRANSMIT = 2
const IIR_NONE = 1
const IIR_TRANSMIT = 2
const IIR_RECEIVE = 4
const IIR_FIFOS = 0xc0
const LCR_DLAB = 0x80
const MCR_RTS = 2
const MCR_LOOP = 0x10
const LSR_DATA_READY = 1
const LSR_TRANSMITTER_EMPTY = 0x60
/** Carrier, data set ready, clear to send. */
const MSR_CONNECTED = 0xb0
const FCR_ENABLE = 1
const FCR_CLEAR_RECEIVER = 2

export class Serial {
  readonly #words: Int32Array
  readonly #input: ConsoleRing
  readonly #output: ConsoleOutput | undefined
  readonly #raise: () => void

  /** `output` is where transmitted bytes go; the main thread, which only saves and feeds input, has none. */
  constructor(wasm: WebAssembly.Memory, output: ConsoleOutput | undefined, raise: () => void) {
    this.#words = legacyWords(wasm, LEGACY.serial, WORDS)
    this.#input = ConsoleRing.input(wasm)
    this.#output = output
    this.#raise = raise
  }

  /** Divisor 12: 9600 baud, what a PC has after its self-test. */
  reset(): void {
    this.#words.fill(0)
    this.#words[DLL] = 12
    this.#words[MCR] = 0x08
  }

  read(register: number): number {
    const words = this.#words
    const dlab = (words[LCR]! & LCR_DLAB) !== 0
    switch (register) {
      case 0:
        return dlab ? words[DLL]! : this.#receive()
      case 1:
        return dlab ? words[DLM]! : words[IER]!
      case 2:
        return this.#interruptIdentification()
      case 3:
        return words[LCR]!
      case 4:
        return words[MCR]!
      case 5:
        return LSR_TRANSMITTER_EMPTY | (this.#dataReady ? LSR_DATA_READY : 0)
      case 6:
        return this.#modemStatus()
      default:
        return words[SCR]!
    }
  }

  /** True when a write to this register may put out a byte, for which the bus waits until there is room. */
  transmits(register: number): boolean {
    return register === 0 && (Atomics.load(this.#words, LCR) & LCR_DLAB) === 0
  }

  write(register: number, value: number): void {
    const words = this.#words
    const dlab = (words[LCR]! & LCR_DLAB) !== 0
    switch (register) {
      case 0:
        if (dlab) words[DLL] = value
        else this.#transmit(value)
        return
      case 1:
        if (dlab) words[DLM] = value
        else this.#enableInterrupts(value & 0x0f)
        return
      case 2:
        words[FIFO_ON] = value & FCR_ENABLE
        if ((value & FCR_CLEAR_RECEIVER) !== 0) words[LOOP_COUNT] = 0
        return
      case 3:
        words[LCR] = value
        return
      case 4:
        words[PROGRAMMED] = 1
        words[MCR] = value & 0x1f
        // RTS may have let input flow.
        if ((words[IER]! & IER_RECEIVE) !== 0 && this.#dataReady) this.#raise()
        return
      case 7:
        words[SCR] = value
        return
    }
  }

  /** The main thread put bytes into the input ring. Takes no lock: an interrupt too many does no harm. */
  inputArrived(): void {
    if ((Atomics.load(this.#words, IER) & IER_RECEIVE) !== 0) this.#raise()
  }

  save(): SavedWords {
    return saveWords(this.#words)
  }

  restore(saved: unknown): void {
    const words = validWords('serial', saved, WORDS, value => value >= 0 && value <= 0xff)
    words[LOOP_COUNT] = Math.min(words[LOOP_COUNT]!, FIFO_SIZE)
    this.#words.set(words)
  }

  /** Interrupts that were on their way when the machine was saved are not saved with it: an edge too many is harmless. */
  raiseAgain(): void {
    if (this.#cause !== IIR_NONE) this.#raise()
  }

  get #flowing(): boolean {
    return (this.#words[MCR]! & MCR_RTS) !== 0 || this.#words[PROGRAMMED] === 0
  }

  get #looped(): boolean {
    return (this.#words[MCR]! & MCR_LOOP) !== 0
  }

  get #dataReady(): boolean {
    if (this.#looped) return this.#words[LOOP_COUNT]! > 0
    return this.#flowing && this.#input.used > 0
  }

  get #cause(): number {
    const enabled = this.#words[IER]!
    if ((enabled & IER_RECEIVE) !== 0 && this.#dataReady) return IIR_RECEIVE
    if ((enabled & IER_TRANSMIT) !== 0 && this.#words[THRE_PENDING] !== 0) return IIR_TRANSMIT
    return IIR_NONE
  }

  #receive(): number {
    const words = this.#words
    if (this.#looped) {
      if (words[LOOP_COUNT] === 0) return 0
      const byte = words[LOOP_BYTES]!
      words.copyWithin(LOOP_BYTES, LOOP_BYTES + 1, LOOP_BYTES + FIFO_SIZE)
      words[LOOP_COUNT]!--
      return byte
    }
    return this.#dataReady ? this.#input.pop() : 0
  }

  #transmit(value: number): void {
    const words = this.#words
    if (this.#looped) {
      if (words[LOOP_COUNT]! < FIFO_SIZE) {
        words[LOOP_BYTES + words[LOOP_COUNT]!] = value
        words[LOOP_COUNT]!++
      }
      if ((words[IER]! & IER_RECEIVE) !== 0) this.#raise()
    } else this.#output?.push(value)
    words[THRE_PENDING] = 1
    if ((words[IER]! & IER_TRANSMIT) !== 0) this.#raise()
  }

  #enableInterrupts(value: number): void {
    const words = this.#words
    words[PROGRAMMED] = 1
    // Enabling the transmitter's interrupt while it is empty raises it: drivers start sending that way.
    if ((value & ~words[IER]! & IER_TRANSMIT) !== 0) words[THRE_PENDING] = 1
    Atomics.store(words, IER, value)
    if (this.#cause !== IIR_NONE) this.#raise()
  }

  #interruptIdentification(): number {
    const cause = this.#cause
    if (cause === IIR_TRANSMIT) this.#words[THRE_PENDING] = 0
    return cause | (this.#words[FIFO_ON] !== 0 ? IIR_FIFOS : 0)
  }

  /** In loopback DTR, RTS, OUT1 and OUT2 come back as DSR, CTS, RI and DCD. */
  #modemStatus(): number {
    if (!this.#looped) return MSR_CONNECTED
    const mcr = this.#words[MCR]!
    return ((mcr & 1) << 5) | ((mcr & 2) << 3) | ((mcr & 4) << 4) | ((mcr & 8) << 4)
  }
}
