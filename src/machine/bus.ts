/**
 * What a vCPU's thread does with the guest's port and MMIO accesses: legacy devices by port, device windows by address.
 * Made in each vCPU worker from a description; the devices' state is in shared memory, behind one lock.
 */
import type { InterruptTicket, IoHandler } from '../accel/contract.ts'
import { openInterrupt } from '../accel/interrupt.ts'
import {
  ACPI_RESET_VALUE,
  ACPI_S5_TYPE,
  PORT_ACPI_RESET,
  PORT_ACPI_SLEEP_CONTROL,
  PORT_ACPI_SLEEP_STATUS,
  PORT_CMOS,
  PORT_COM1,
  PORT_I8042_COMMAND,
  PORT_I8042_DATA,
  VIRTIO_MMIO_SIZE,
  VIRTIO_MMIO_START,
} from './address-map.ts'
import type { MmioDescription, MmioHandler } from './device-slots.ts'
import { type ConsoleListener, ConsoleOutput } from './legacy/console-output.ts'
import { LegacyDevices } from './legacy/legacy-devices.ts'
import { SharedLock } from './legacy/lock.ts'
import { openMmioHandler } from './mmio-handlers.ts'
import { CONTROL, COUNTER, controlWords, POWER_REQUEST } from './shared-layout.ts'

/** Structured-cloneable. */
export interface BusDescription {
  readonly wasm: WebAssembly.Memory
  /** COM1's interrupt line; none in a machine without interrupt controllers. */
  readonly serialInterrupt: InterruptTicket | undefined
  readonly windows: readonly MmioDescription[]
}

const PORT_POST = 0x80
const PORT_IO_DELAY = 0xed
const SLEEP_ENABLE = 0x20
const ALL_ONES = [0, 0xff, 0xffff, 0, 0xffff_ffff]

export class Bus implements IoHandler {
  stopRequested = false
  readonly #control: Int32Array
  readonly #lock: SharedLock
  readonly #output: ConsoleOutput
  readonly #legacy: LegacyDevices
  readonly #windows: (MmioHandler | undefined)[] = []

  private constructor(wasm: WebAssembly.Memory, console: ConsoleListener, raiseSerial: () => void) {
    this.#control = controlWords(wasm)
    this.#lock = new SharedLock(this.#control, CONTROL.legacyLock)
    this.#output = new ConsoleOutput(wasm, console)
    this.#legacy = new LegacyDevices(wasm, this.#output, raiseSerial)
  }

  static async open(description: BusDescription, console: ConsoleListener): Promise<Bus> {
    const line = description.serialInterrupt ? await openInterrupt(description.serialInterrupt) : undefined
    const bus = new Bus(description.wasm, console, line ? () => line.raise() : () => {})
    for (const window of description.windows) {
      const index = (window.address - VIRTIO_MMIO_START) / VIRTIO_MMIO_SIZE
      bus.#windows[index] = openMmioHandler(window)
    }
    return bus
  }

  portRead(port: number, size: number): number {
    Atomics.add(this.#legacy.counters, COUNTER.portReads, 1)
    // Byte-wide devices: a wider access gets the register in its low byte, and nothing drives the other lines.
    const high = size === 1 ? 0 : (ALL_ONES[size]! & ~0xff) >>> 0
    let value: number
    this.#lock.acquire()
    if (port >= PORT_COM1 && port < PORT_COM1 + 8) value = this.#legacy.serial.read(port - PORT_COM1)
    else if (port === PORT_CMOS + 1) value = this.#legacy.rtc.read()
    else if (port === PORT_I8042_COMMAND) value = this.#legacy.i8042.readStatus()
    else if (port === PORT_I8042_DATA) value = this.#legacy.i8042.readData()
    else if (port === PORT_ACPI_SLEEP_CONTROL || port === PORT_ACPI_SLEEP_STATUS) value = 0
    else {
      value = 0xff
      Atomics.add(this.#legacy.counters, COUNTER.unclaimedPortReads, 1)
    }
    this.#lock.release()
    return (high | value) >>> 0
  }

  portWrite(port: number, size: number, value: number): void {
    Atomics.add(this.#legacy.counters, COUNTER.portWrites, 1)
    const byte = value & 0xff
    if (port >= PORT_COM1 && port < PORT_COM1 + 8) {
      const register = port - PORT_COM1
      if (this.#legacy.serial.transmits(register)) this.#output.waitForRoom()
      this.#lock.acquire()
      this.#legacy.serial.write(register, byte)
      this.#lock.release()
      return
    }
    // Writes to these only pass time.
    if (port === PORT_POST || port === PORT_IO_DELAY) return
    this.#lock.acquire()
    if (port === PORT_CMOS) {
      this.#legacy.rtc.select(byte)
      if (size > 1) this.#legacy.rtc.write((value >>> 8) & 0xff)
    } else if (port === PORT_CMOS + 1) this.#legacy.rtc.write(byte)
    else if (port === PORT_I8042_COMMAND) {
      if (this.#legacy.i8042.writeCommand(byte)) this.#requestPower(POWER_REQUEST.reboot)
    } else if (port === PORT_I8042_DATA) {
      if (this.#legacy.i8042.writeData(byte)) this.#requestPower(POWER_REQUEST.reboot)
    } else if (port === PORT_ACPI_SLEEP_CONTROL) {
      if ((byte & SLEEP_ENABLE) !== 0 && ((byte >> 2) & 7) === ACPI_S5_TYPE) this.#requestPower(POWER_REQUEST.off)
    } else if (port === PORT_ACPI_RESET) {
      if (byte === ACPI_RESET_VALUE) this.#requestPower(POWER_REQUEST.reboot)
    } else if (port !== PORT_ACPI_SLEEP_STATUS) {
      Atomics.add(this.#legacy.counters, COUNTER.unclaimedPortWrites, 1)
    }
    this.#lock.release()
  }

  mmioRead(address: number, size: number, data: DataView): void {
    Atomics.add(this.#legacy.counters, COUNTER.mmioReads, 1)
    const from = address - VIRTIO_MMIO_START
    const offset = from & (VIRTIO_MMIO_SIZE - 1)
    const window = from >= 0 ? this.#windows[Math.floor(from / VIRTIO_MMIO_SIZE)] : undefined
    if (window && offset + size <= VIRTIO_MMIO_SIZE) {
      window.read(offset, size, data)
      return
    }
    Atomics.add(this.#legacy.counters, COUNTER.unclaimedMmioReads, 1)
    for (let i = 0; i < size; i++) data.setUint8(i, 0xff)
  }

  mmioWrite(address: number, size: number, data: DataView): void {
    Atomics.add(this.#legacy.counters, COUNTER.mmioWrites, 1)
    const from = address - VIRTIO_MMIO_START
    const offset = from & (VIRTIO_MMIO_SIZE - 1)
    const window = from >= 0 ? this.#windows[Math.floor(from / VIRTIO_MMIO_SIZE)] : undefined
    if (window && offset + size <= VIRTIO_MMIO_SIZE) window.write(offset, size, data)
    else Atomics.add(this.#legacy.counters, COUNTER.unclaimedMmioWrites, 1)
  }

  #requestPower(request: number): void {
    Atomics.store(this.#control, CONTROL.powerRequest, request)
    this.stopRequested = true
  }
}
