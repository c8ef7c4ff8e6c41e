import { afterEach, describe, expect, it } from 'vitest'
import { VirtioError } from '../errors.ts'
import { STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import type { Segment } from '../testing/driver.ts'
import { F_CSUM, F_HOST_TSO4, F_HOST_TSO6, F_MRG_RXBUF } from './config.ts'
import { NetDevice } from './device.ts'
import { LoopbackLink } from './loopback.ts'

const MAC = '02:00:5e:10:00:01'
let bench: DeviceBench<NetDevice>
afterEach(() => {
  bench.close()
  expect(bench.errors).toEqual([])
})

function open(options: { offloads?: boolean; limit?: number } = {}, refuse: number[] = []): void {
  bench = new DeviceBench(new NetDevice(new LoopbackLink(options), { mac: MAC, mtu: 1400 }))
  bench.driver.start(2, undefined, refuse)
}

interface Header {
  flags?: number
  gso?: number
  size?: number
  start?: number
  offset?: number
  length?: number
}

function headerBytes(header: Header = {}): Uint8Array {
  const bytes = new Uint8Array(12)
  const view = new DataView(bytes.buffer)
  bytes[0] = header.flags ?? 0
  bytes[1] = header.gso ?? 0
  view.setUint16(2, header.length ?? 0, true)
  view.setUint16(4, header.size ?? 0, true)
  view.setUint16(6, header.start ?? 0, true)
  view.setUint16(8, header.offset ?? 0, true)
  return bytes
}

const frameOf = (length: number): Uint8Array => Uint8Array.from({ length }, (_, i) => (i * 13 + length) & 255)

function send(frame: Uint8Array, header?: Header): void {
  const { driver } = bench
  driver.queues[1]!.add([driver.buffer(headerBytes(header)), driver.buffer(frame)])
  driver.queues[1]!.kick()
  bench.run()
}

function supply(count: number, size: number): Segment[] {
  const spaces = Array.from({ length: count }, () => bench.driver.space(size))
  for (const space of spaces) bench.driver.queues[0]!.add([space])
  bench.driver.queues[0]!.kick()
  bench.run()
  return spaces
}

describe('the network card', () => {
  it('says its address, its MTU and that the cable is in', () => {
    open()
    const { driver } = bench
    expect([0, 1, 2, 3, 4, 5].map(i => driver.config(i, 1))).toEqual([2, 0, 0x5e, 0x10, 0, 1])
    expect([driver.config(6, 2), driver.config(10, 2)]).toEqual([1, 1400])
    expect(() => new NetDevice(new LoopbackLink(), { mac: '01:00:00:00:00:00' })).toThrow(VirtioError)
    expect(() => new NetDevice(new LoopbackLink(), { mac: 'hello' })).toThrow(/MAC address/)
    expect(() => new NetDevice(new LoopbackLink(), { mac: MAC, mtu: 9 })).toThrow(/MTU/)
  })

  it('sends frames, and receives them into one buffer each', () => {
    open()
    const spaces = supply(4, 2048)
    send(frameOf(60))
    send(frameOf(1514))
    const used = bench.driver.queues[0]!.takeUsed()
    expect(used.map(entry => entry.length)).toEqual([72, 1526])
    expect(bench.driver.bytes(spaces[0]!).subarray(12, 72)).toEqual(frameOf(60))
    expect(bench.driver.bytes(spaces[1]!).subarray(12, 1526)).toEqual(frameOf(1514))
    expect(bench.driver.bytes(spaces[1]!)[10]).toBe(1)
    expect(bench.metrics).toMatchObject({ framesOut: 2, framesIn: 2, bytesIn: 1574 })
  })

  it('spreads a large segment over merged buffers, with its offload header', () => {
    open()
    const spaces = supply(48, 1526)
    send(frameOf(60_000), { flags: 1, gso: 1, size: 1448, start: 34, offset: 16, length: 54 })
    const used = bench.driver.queues[0]!.takeUsed()
    expect(used).toHaveLength(40)
    const all = Buffer.concat(used.map((entry, i) => bench.driver.bytes(spaces[i]!).subarray(0, entry.length)))
    expect(all.subarray(0, 10)).toEqual(
      Buffer.from(headerBytes({ flags: 1, gso: 1, size: 1448, start: 34, offset: 16, length: 54 }).subarray(0, 10)),
    )
    expect(all.readUInt16LE(10)).toBe(40)
    expect(all.subarray(12)).toEqual(Buffer.from(frameOf(60_000)))
  })

  it('lets a frame wait until there are buffers enough for it', () => {
    open()
    send(frameOf(5000))
    supply(2, 1526)
    expect(bench.driver.queues[0]!.takeUsed()).toEqual([])
    supply(2, 1526)
    expect(bench.driver.queues[0]!.takeUsed()).toHaveLength(4)
  })

  it('drops a frame that a driver without merging has no buffer for, and goes on', () => {
    open({}, [F_MRG_RXBUF])
    supply(4, 1526)
    send(frameOf(3000))
    send(frameOf(100))
    expect(bench.driver.queues[0]!.takeUsed().map(entry => entry.length)).toEqual([112])
    expect(bench.metrics.droppedIn).toBe(1)
  })

  it('makes the guest wait when the link is full, and loses nothing', () => {
    open({ limit: 4 })
    const { driver } = bench
    for (let i = 0; i < 10; i++) driver.queues[1]!.add([driver.buffer(headerBytes()), driver.buffer(frameOf(60 + i))])
    driver.queues[1]!.kick()
    bench.run()
    expect(driver.queues[1]!.takeUsed()).toHaveLength(4)
    supply(16, 2048)
    expect(driver.queues[0]!.takeUsed().map(entry => entry.length)).toEqual(
      Array.from({ length: 10 }, (_, i) => 72 + i),
    )
    expect(driver.queues[1]!.takeUsed()).toHaveLength(6)
  })

  it.each<[string, number, Header, number[]]>([
    ['shorter than an ethernet header', 13, {}, []],
    ['longer than any frame', 65_551, {}, []],
    ['with a checksum outside', 100, { flags: 1, start: 90, offset: 9 }, []],
    [
      'with a checksum that was not negotiated',
      100,
      { flags: 1, start: 34, offset: 16 },
      [F_CSUM, F_HOST_TSO4, F_HOST_TSO6],
    ],
    [
      'with segmentation that was not negotiated',
      5000,
      { flags: 1, gso: 1, size: 1400, start: 34, offset: 16 },
      [F_HOST_TSO4],
    ],
    ['with UDP segmentation', 5000, { flags: 1, gso: 3, size: 1400, start: 34, offset: 6 }, []],
    ['with segments of no bytes', 5000, { flags: 1, gso: 4, size: 0, start: 34, offset: 16 }, []],
    ['with segmentation and no checksum', 5000, { gso: 4, size: 1000 }, []],
    ['with a header longer than itself', 100, { flags: 1, gso: 1, size: 10, length: 101 }, []],
  ])('drops a frame %s', (_, length, header, refuse) => {
    open({}, refuse)
    send(frameOf(length), header)
    expect(bench.metrics).toMatchObject({ droppedOut: 1, framesOut: 0, guestFaults: 0 })
    send(frameOf(60))
    expect(bench.metrics.framesOut).toBe(1)
  })

  it('needs a reset after a frame without a header, and after a receive buffer too small for one', () => {
    open()
    bench.driver.queues[1]!.add([bench.driver.buffer(new Uint8Array(11))])
    bench.driver.queues[1]!.kick()
    bench.run()
    expect(bench.driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
    bench.driver.start(2)
    bench.driver.queues[0]!.add([bench.driver.space(8)])
    supply(3, 2000)
    send(frameOf(60))
    expect(bench.driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
  })

  it('offers no offloads when its link has none', () => {
    open({ offloads: false })
    expect([0, 1, 7, 8, 11, 12].some(bit => bench.driver.offered().has(bit))).toBe(false)
  })

  it('has its cable pulled, is saved so, and plugged in again', () => {
    open()
    bench.device.control({ up: false })
    expect(bench.driver.config(6, 2)).toBe(0)
    send(frameOf(60))
    expect(bench.metrics).toMatchObject({ droppedOut: 1 })
    const saved = saveTransport(bench.transport)
    const copy = new DeviceBench(new NetDevice(new LoopbackLink(), { mac: MAC }), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saved)
    expect(copy.driver.config(6, 2)).toBe(0)
    copy.device.control({ up: true })
    expect(copy.driver.config(6, 2)).toBe(1)
    copy.close()
  })
})
