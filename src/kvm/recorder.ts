/** An IoHandler that records what a micro-guest does. */
import type { IoHandler } from '../accel/contract.ts'

const littleEndian = (data: DataView, size: number): bigint => {
  let value = 0n
  for (let i = size - 1; i >= 0; i--) value = (value << 8n) | BigInt(data.getUint8(i))
  return value
}

/** Records every access. Port reads give `answer`, which counts up; MMIO reads give the bytes A0, A1, A2... */
export class Recorder implements IoHandler {
  readonly portWrites: [port: number, size: number, value: number][] = []
  readonly portReads: [port: number, size: number][] = []
  readonly mmioWrites: [address: number, size: number, value: bigint][] = []
  readonly mmioReads: [address: number, size: number][] = []
  /** Asks for a stop once this many writes, of both kinds, were made. */
  stopAfterWrites = Number.POSITIVE_INFINITY
  answer = 0

  get stopRequested(): boolean {
    return this.portWrites.length + this.mmioWrites.length >= this.stopAfterWrites
  }
  get text(): string {
    return String.fromCharCode(...this.portWrites.map(([, , value]) => value))
  }
  portRead(port: number, size: number): number {
    this.portReads.push([port, size])
    return this.answer++
  }
  portWrite(port: number, size: number, value: number): void {
    this.portWrites.push([port, size, value])
  }
  mmioRead(address: number, size: number, data: DataView): void {
    this.mmioReads.push([address, size])
    for (let i = 0; i < size; i++) data.setUint8(i, 0xa0 + i)
  }
  mmioWrite(address: number, size: number, data: DataView): void {
    this.mmioWrites.push([address, size, littleEndian(data, size)])
  }
}
