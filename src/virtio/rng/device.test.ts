import { afterEach, describe, expect, it } from 'vitest'
import { VirtioError } from '../errors.ts'
import { STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import { RngDevice } from './device.ts'

let bench: DeviceBench
afterEach(() => bench.close())

describe('the entropy device', () => {
  it('fills writable buffers, and only them, with bytes that differ', () => {
    bench = new DeviceBench(new RngDevice())
    const { driver } = bench
    driver.start(1)
    const [queue] = driver.queues
    const parts = [driver.space(100), driver.space(28)]
    const guard = driver.buffer(new Uint8Array(64))
    const other = driver.space(128)
    queue!.add(parts)
    queue!.add([other], true)
    queue!.kick()
    bench.run()
    expect(queue!.takeUsed().map(used => used.length)).toEqual([128, 128])
    const first = [...driver.bytes(parts[0]!), ...driver.bytes(parts[1]!)]
    expect(first).not.toEqual([...driver.bytes(other)])
    expect(new Set(first).size).toBeGreaterThan(50)
    expect(driver.bytes(guard).every(byte => byte === 0)).toBe(true)
    expect(bench.takeInterrupts()).toBe(1)
    expect(bench.metrics).toMatchObject({ requests: 2, bytes: 256, guestFaults: 0 })
  })

  it('gives at most its limit to one request', () => {
    bench = new DeviceBench(new RngDevice({ maxBytes: 1000 }))
    bench.driver.start(1)
    const space = bench.driver.space(70_000)
    bench.driver.queues[0]!.add([space])
    bench.driver.queues[0]!.kick()
    bench.run()
    expect(bench.driver.queues[0]!.takeUsed()[0]!.length).toBe(1000)
    expect(
      bench.driver
        .bytes(space)
        .subarray(1000)
        .every(byte => byte === 0xee),
    ).toBe(true)
  })

  it('needs a reset after a readable buffer', () => {
    bench = new DeviceBench(new RngDevice())
    bench.driver.start(1)
    bench.driver.queues[0]!.add([bench.driver.buffer([1, 2, 3])])
    bench.driver.queues[0]!.kick()
    bench.run()
    expect(bench.driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
    expect(bench.metrics).toMatchObject({ guestFaults: 1, lastGuestFault: 'request-shape' })
  })

  it('is saved and restored, and refuses a damaged state', () => {
    bench = new DeviceBench(new RngDevice())
    bench.driver.start(1)
    const [queue] = bench.driver.queues
    queue!.add([bench.driver.space(16)])
    queue!.kick()
    bench.run()
    queue!.takeUsed()
    const saved = JSON.parse(JSON.stringify(saveTransport(bench.transport)))
    const copy = new DeviceBench(new RngDevice(), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saved)
    queue!.add([bench.driver.space(16)])
    copy.run()
    expect(queue!.takeUsed()).toHaveLength(1)
    expect(() => restoreTransport(copy.transport, { ...saved, type: 2 })).toThrow(VirtioError)
    expect(() => restoreTransport(copy.transport, { ...saved, queues: [] })).toThrow(/its queues/)
    copy.close()
  })
})
