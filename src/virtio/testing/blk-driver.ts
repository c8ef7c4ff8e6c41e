/** Block requests as a driver makes them, for tests. */
import type { DeviceBench } from './bench.ts'
import type { DriverModel, Segment } from './driver.ts'

export const IN = 0
export const OUT = 1
export const FLUSH = 4
export const GET_ID = 8
export const DISCARD = 11
export const WRITE_ZEROES = 13

export function blkHeader(type: number, sector: number): Uint8Array {
  const header = new Uint8Array(16)
  const view = new DataView(header.buffer)
  view.setUint32(0, type, true)
  view.setBigUint64(8, BigInt(sector), true)
  return header
}

export function rangeBytes(
  ...ranges: readonly (readonly [sector: number, sectors: number, flags?: number])[]
): Uint8Array {
  const bytes = new Uint8Array(16 * ranges.length)
  const view = new DataView(bytes.buffer)
  ranges.forEach(([sector, sectors, flags], i) => {
    view.setBigUint64(16 * i, BigInt(sector), true)
    view.setUint32(16 * i + 8, sectors, true)
    view.setUint32(16 * i + 12, flags ?? 0, true)
  })
  return bytes
}

/** Makes a request available without ringing; its status byte is the last segment. */
export function submit(
  driver: DriverModel,
  type: number,
  sector: number,
  data: readonly Segment[] = [],
  queue = 0,
  indirect = false,
): Segment {
  const status = driver.space(1)
  driver.queues[queue]!.add([driver.buffer(blkHeader(type, sector)), ...data, status], indirect)
  return status
}

/** Submits, rings, runs the device, and gives the request's status. */
export function request(bench: DeviceBench, type: number, sector: number, ...data: readonly Segment[]): number {
  const status = submit(bench.driver, type, sector, data)
  bench.driver.queues[0]!.kick()
  bench.run()
  bench.driver.queues[0]!.takeUsed()
  return bench.driver.bytes(status)[0]!
}
