import { readFileSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import { DirtyLog } from '../../memory/dirty-log.ts'
import { CONFIG, STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import { F_STATS_VQ } from './config.ts'
import { BalloonDevice } from './device.ts'

const MIB = 2 ** 20
let bench: DeviceBench<BalloonDevice>
afterEach(() => {
  bench.close()
  expect(bench.errors).toEqual([])
})

const open = (options = {}): void => {
  bench = new DeviceBench(new BalloonDevice(options), { sizeMib: 64 })
  bench.driver.start(4)
}

const numbers = (...pages: number[]): Uint8Array => new Uint8Array(Uint32Array.from(pages).buffer)

/** This process's resident memory in bytes, as the kernel counts it. */
const resident = (): number => Number(/VmRSS:\s+(\d+)/.exec(readFileSync('/proc/self/status', 'utf8'))![1]) * 1024

describe('the balloon', () => {
  it('drops the pages that the guest puts into it, and no other', () => {
    open()
    const { driver, memory } = bench
    const start = 32 * MIB
    memory.slice(start, 16 * 4096).fill(7)
    const [inflate, deflate] = driver.queues
    inflate!.add([driver.buffer(numbers(start / 4096, start / 4096 + 1, start / 4096 + 5))])
    inflate!.kick()
    bench.run()
    const first = (page: number): number => memory.readU8(start + page * 4096)
    expect([0, 1, 2, 4, 5, 6].map(first)).toEqual([0, 0, 7, 7, 0, 7])
    expect(bench.metrics).toMatchObject({ inflatedPages: 3, droppedBytes: 3 * 4096, badPages: 0 })
    deflate!.add([driver.buffer(numbers(start / 4096))])
    deflate!.kick()
    bench.run()
    expect(deflate!.takeUsed()).toHaveLength(1)
    expect(bench.metrics.deflatedPages).toBe(1)
  })

  it('gives memory back to the host: the kernel says so', () => {
    open()
    const { driver, memory } = bench
    memory.slice(24 * MIB, 32 * MIB).fill(1)
    const before = resident()
    for (let chunk = 0; chunk < 32; chunk++) {
      const first = ((24 + chunk) * MIB) / 4096
      driver.queues[0]!.add([driver.buffer(numbers(...Array.from({ length: 256 }, (_, i) => first + i)))])
    }
    driver.queues[0]!.kick()
    bench.run()
    expect(before - resident()).toBeGreaterThan(24 * MIB)
  })

  it('drops whole pages of reported free memory', () => {
    open()
    const { driver, memory } = bench
    memory.slice(40 * MIB, MIB).fill(9)
    driver.queues[3]!.add([
      { address: 40 * MIB + 100, length: 3 * 4096, write: true },
      { address: 40 * MIB + 0x8_0000, length: 4096, write: true },
    ])
    driver.queues[3]!.kick()
    bench.run()
    const bytes = [0, 4096, 2 * 4096, 3 * 4096, 0x8_0000].map(at => memory.readU8(40 * MIB + at))
    expect(bytes).toEqual([9, 0, 0, 9, 0])
    expect(driver.queues[3]!.takeUsed()).toHaveLength(1)
  })

  it('finds the reporting queue where a driver without statistics has it', () => {
    bench = new DeviceBench(new BalloonDevice(), { sizeMib: 64 })
    const { driver, memory } = bench
    driver.start(3, undefined, [F_STATS_VQ])
    memory.slice(40 * MIB, 4096).fill(9)
    driver.queues[2]!.add([{ address: 40 * MIB, length: 4096, write: true }])
    driver.queues[2]!.kick()
    bench.run()
    expect(memory.readU8(40 * MIB)).toBe(0)
  })

  it('counts pages that are not RAM and drops those that are', () => {
    open()
    const { driver, memory } = bench
    memory.slice(63 * MIB, MIB).fill(5)
    const last = (64 * MIB) / 4096 - 1
    driver.queues[0]!.add([driver.buffer(numbers(last, last + 1, 0xffff_ffff, 0xc_0000))])
    driver.queues[0]!.kick()
    bench.run()
    expect(memory.readU8(64 * MIB - 4096)).toBe(0)
    expect(memory.readU8(64 * MIB - 8192)).toBe(5)
    expect(bench.metrics).toMatchObject({ badPages: 3, guestFaults: 0 })
  })

  it.each([
    [0, 3],
    [0, 5000 * 4],
  ])('needs a reset after a request on queue %i of %i bytes', (queue, length) => {
    open()
    bench.driver.queues[queue]!.add([bench.driver.buffer(new Uint8Array(length))])
    bench.driver.queues[queue]!.kick()
    bench.run()
    expect(bench.driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
  })

  it('is given a target, and hears what the guest has made of it', () => {
    open()
    const { driver } = bench
    bench.takeInterrupts()
    expect(bench.device.control({ targetMib: 16 })).toMatchObject({ targetPages: 4096, actualPages: 0 })
    expect(bench.takeInterrupts()).toBe(1)
    expect(driver.config(0)).toBe(4096)
    driver.write(CONFIG + 4, 1234)
    bench.run()
    expect(bench.device.control({})).toMatchObject({ actualPages: 1234 })
    // The target is not the guest's to change.
    driver.write(CONFIG, 1)
    expect(driver.config(0)).toBe(4096)
    expect(() => bench.device.control({ targetMib: 65 })).toThrow(/the target/)
  })

  it('reads statistics and asks for new ones', () => {
    open()
    const { driver } = bench
    const stats = new Uint8Array(20)
    const view = new DataView(stats.buffer)
    view.setUint16(0, 4, true)
    view.setBigUint64(2, 123_456_789n, true)
    view.setUint16(10, 5, true)
    view.setBigUint64(12, 1n << 30n, true)
    driver.queues[2]!.add([driver.buffer(stats)])
    driver.queues[2]!.kick()
    bench.run()
    expect(driver.queues[2]!.takeUsed()).toEqual([])
    expect(bench.device.control({ stats: true })).toMatchObject({
      stats: { freeMemory: 123_456_789, totalMemory: 2 ** 30 },
    })
    bench.run()
    expect(driver.queues[2]!.takeUsed()).toHaveLength(1)
  })

  it('notes dropped pages for incremental snapshots', () => {
    open()
    const log = new DirtyLog(bench.memory)
    log.setEnabled(true)
    bench.driver.queues[0]!.add([bench.driver.buffer(numbers(8192))])
    bench.driver.queues[0]!.kick()
    bench.run()
    const bits = log.take()
    expect(bits[8192 >> 3]! & 1).toBe(1)
    log.setEnabled(false)
  })

  it('is saved and restored', () => {
    open({ targetMib: 8 })
    bench.driver.write(CONFIG + 4, 77)
    const saved = saveTransport(bench.transport)
    const copy = new DeviceBench(new BalloonDevice(), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saved)
    expect(copy.device.control({})).toMatchObject({ targetPages: 2048, actualPages: 77 })
    copy.close()
  })
})
