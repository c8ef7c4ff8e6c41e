import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeEach, describe, expect, it } from 'vitest'
import { HostError } from '../../host/errors.ts'
import type { IoVector } from '../../host/io-vector.ts'
import { CONFIG, STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import { DISCARD, FLUSH, GET_ID, IN, OUT, rangeBytes, request, submit, WRITE_ZEROES } from '../testing/blk-driver.ts'
import { RawFile } from '../testing/raw-file.ts'
import { F_CONFIG_WCE, F_FLUSH } from './config.ts'
import { BlkDevice } from './device.ts'
import { HeldDisk } from './held-disk.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-blk-'))
afterAll(() => rmSync(folder, { recursive: true }))

const SECTORS = 2048
const path = join(folder, 'disk')
const pattern = Uint8Array.from({ length: SECTORS * 512 }, (_, i) => (i * 7 + (i >> 9)) & 255)
let bench: DeviceBench<BlkDevice>

const open = (options?: { readOnly?: boolean; queues?: number }): void => {
  bench = new DeviceBench(
    new BlkDevice(new RawFile(path, options ?? {}), { serial: 'disk-one', queues: options?.queues ?? 1 }),
  )
  bench.driver.start(options?.queues ?? 1)
}

beforeEach(() => writeFileSync(path, pattern))
afterEach(() => {
  bench.close()
  expect(bench.errors).toEqual([])
})

describe('the block device', () => {
  it('says what it is in its configuration space', () => {
    open()
    const { driver } = bench
    expect(driver.config(0)).toBe(SECTORS)
    expect(driver.config(12)).toBe(510)
    expect(driver.config(20)).toBe(512)
    expect(driver.config(34, 2)).toBe(1)
    expect(driver.config(56, 1)).toBe(1)
  })

  it('reads into scattered buffers', () => {
    open()
    const parts = [bench.driver.space(100), bench.driver.space(412), bench.driver.space(1024)]
    expect(request(bench, IN, 3, ...parts)).toBe(0)
    const got = parts.flatMap(part => [...bench.driver.bytes(part)])
    expect(got).toEqual([...pattern.subarray(3 * 512, 6 * 512)])
    expect(bench.metrics).toMatchObject({ reads: 1, readBytes: 1536, ioErrors: 0 })
  })

  it('writes what the file then holds, and only there', () => {
    open()
    const data = bench.driver.buffer(new Uint8Array(1024).fill(0xab))
    expect(request(bench, OUT, 10, data)).toBe(0)
    expect(request(bench, FLUSH, 0)).toBe(0)
    const expected = new Uint8Array(pattern)
    expected.fill(0xab, 5120, 6144)
    expect(Buffer.compare(readFileSync(path), expected)).toBe(0)
  })

  it('takes header, data and status in any layout of descriptors, and through indirect tables', () => {
    open()
    const { driver } = bench
    const [queue] = driver.queues
    // The header in two pieces, the second running on into the data; the status byte behind the data.
    const whole = new Uint8Array(16 + 512).fill(0x5a)
    whole.set([OUT, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0])
    const status = driver.space(1)
    queue!.add([driver.buffer(whole.subarray(0, 5)), driver.buffer(whole.subarray(5)), status], true)
    const back = driver.space(513)
    const read = new Uint8Array(16)
    read[8] = 4
    queue!.add([driver.buffer(read), back])
    queue!.kick()
    bench.run()
    expect(queue!.takeUsed().map(used => used.length)).toEqual([1, 513])
    expect([driver.bytes(status)[0], driver.bytes(back)[512]]).toEqual([0, 0])
    expect(driver.bytes(back).subarray(0, 512)).toEqual(new Uint8Array(512).fill(0x5a))
  })

  it('discards and zeroes ranges of the file', () => {
    open()
    const { driver } = bench
    expect(request(bench, DISCARD, 0, driver.buffer(rangeBytes([8, 16], [64, 8])))).toBe(0)
    expect(request(bench, WRITE_ZEROES, 0, driver.buffer(rangeBytes([100, 3, 0], [200, 8, 1])))).toBe(0)
    const expected = new Uint8Array(pattern)
    for (const [sector, count] of [
      [8, 16],
      [64, 8],
      [100, 3],
      [200, 8],
    ]) {
      expected.fill(0, sector! * 512, (sector! + count!) * 512)
    }
    expect(Buffer.compare(readFileSync(path), expected)).toBe(0)
    expect(statSync(path).blocks).toBeLessThan(SECTORS)
    expect(request(bench, DISCARD, 0, driver.buffer(rangeBytes([8, 16, 1])))).toBe(2)
    expect(request(bench, WRITE_ZEROES, 0, driver.buffer(rangeBytes([8, 16, 2])))).toBe(2)
  })

  it('gives its serial number', () => {
    open()
    const id = bench.driver.space(20)
    expect(request(bench, GET_ID, 0, id)).toBe(0)
    expect(Buffer.from(bench.driver.bytes(id)).toString()).toBe(`disk-one${'\0'.repeat(12)}`)
  })

  it('answers bad requests with an error and goes on', () => {
    open()
    const { driver } = bench
    const sector = driver.space(512)
    expect(request(bench, IN, SECTORS, sector)).toBe(1)
    expect(request(bench, IN, 2 ** 55 - 1, sector)).toBe(1)
    expect(request(bench, IN, SECTORS - 1, sector, driver.space(512))).toBe(1)
    expect(request(bench, IN, 0, driver.space(511))).toBe(1)
    expect(request(bench, OUT, SECTORS, driver.buffer(new Uint8Array(512)))).toBe(1)
    expect(request(bench, OUT, 0, driver.buffer(new Uint8Array(100)))).toBe(1)
    expect(request(bench, DISCARD, 0, driver.buffer(rangeBytes([SECTORS, 1])))).toBe(1)
    expect(request(bench, DISCARD, 0, driver.buffer(rangeBytes([0, 0xffffffff])))).toBe(1)
    expect(request(bench, DISCARD, 0, driver.buffer(new Uint8Array(17)))).toBe(1)
    expect(request(bench, WRITE_ZEROES, 0, driver.buffer(new Uint8Array(16 * 33)))).toBe(1)
    expect(request(bench, GET_ID, 0, driver.space(19))).toBe(1)
    expect(request(bench, 99, 0, sector)).toBe(2)
    expect(request(bench, IN, SECTORS - 1, sector)).toBe(0)
    expect(Buffer.compare(readFileSync(path), pattern)).toBe(0)
    expect(bench.metrics).toMatchObject({ ioErrors: 11, unsupported: 1, guestFaults: 0 })
  })

  it.each([
    ['no header', 1],
    ['a short header', 2],
    ['no status byte', 3],
  ])('needs a reset after %s, and works again after it', (_, kind) => {
    open()
    const { driver } = bench
    const [queue] = driver.queues
    if (kind === 1) queue!.add([driver.space(513)])
    if (kind === 2) queue!.add([driver.buffer(new Uint8Array(15)), driver.space(513)])
    if (kind === 3) queue!.add([driver.buffer(new Uint8Array(16))])
    queue!.kick()
    bench.run()
    expect(driver.status & STATUS_NEEDS_RESET).toBe(STATUS_NEEDS_RESET)
    expect(bench.metrics.lastGuestFault).toBe('request-shape')
    expect(queue!.takeUsed()).toEqual([])
    driver.start(1)
    expect(request(bench, IN, 0, driver.space(512))).toBe(0)
  })

  it('refuses writes to a read-only disk', () => {
    open({ readOnly: true })
    expect(bench.driver.offered().has(5)).toBe(true)
    expect(bench.driver.offered().has(13)).toBe(false)
    expect(request(bench, OUT, 0, bench.driver.buffer(new Uint8Array(512)))).toBe(1)
    expect(request(bench, DISCARD, 0, bench.driver.buffer(rangeBytes([0, 8])))).toBe(1)
    expect(request(bench, FLUSH, 0)).toBe(0)
    expect(Buffer.compare(readFileSync(path), pattern)).toBe(0)
  })

  it('completes a batch with one interrupt where the driver asks for that', () => {
    open()
    const { driver } = bench
    bench.takeInterrupts()
    const space = driver.space(512)
    for (let i = 0; i < 10; i++) submit(driver, IN, i, [space])
    driver.queues[0]!.setUsedEvent(10)
    driver.queues[0]!.kick()
    bench.run()
    expect(driver.queues[0]!.takeUsed()).toHaveLength(10)
    expect(bench.takeInterrupts()).toBe(1)
    submit(driver, IN, 0, [space])
    driver.queues[0]!.setUsedEvent(2)
    driver.queues[0]!.kick()
    bench.run()
    expect(bench.takeInterrupts()).toBe(0)
  })

  it('serves several queues, and a driver that sets up only some of them', () => {
    bench = new DeviceBench(new BlkDevice(new RawFile(path), { queues: 4 }))
    const { driver } = bench
    driver.negotiate()
    driver.setupQueue(0)
    driver.setupQueue(2, 16)
    driver.driverOk()
    const spaces = [driver.space(512), driver.space(512)]
    const statuses = [submit(driver, IN, 5, [spaces[0]!], 0), submit(driver, IN, 6, [spaces[1]!], 2)]
    driver.queues[0]!.kick()
    driver.queues[2]!.kick()
    driver.write(0x50, 3)
    bench.run()
    expect(statuses.map(status => driver.bytes(status)[0])).toEqual([0, 0])
    expect(driver.bytes(spaces[1]!)).toEqual(pattern.slice(6 * 512, 7 * 512))
    expect(driver.status & STATUS_NEEDS_RESET).toBe(0)
  })

  it('flushes every write when the driver chose write-through or cannot flush', () => {
    let flushes = 0
    const counting = {
      sizeBytes: 4096,
      readOnly: false,
      readv: () => {},
      writev: () => {},
      flush: () => void flushes++,
      discard: () => {},
      writeZeroes: () => {},
      close: () => {},
    }
    bench = new DeviceBench(new BlkDevice(counting))
    const { driver } = bench
    driver.start(1)
    const data = driver.buffer(new Uint8Array(512))
    request(bench, OUT, 0, data)
    expect(flushes).toBe(0)
    driver.write(CONFIG + 32, 0, 1)
    bench.run()
    request(bench, OUT, 0, data)
    expect(flushes).toBe(1)
    // Back, and again: the doorbell of a write may be heard before the change of the byte is.
    driver.write(CONFIG + 32, 1, 1)
    bench.run()
    driver.write(CONFIG + 32, 0, 1)
    submit(driver, OUT, 0, [data])
    bench.device.notified(0)
    expect(flushes).toBe(2)
    driver.start(1, undefined, [F_FLUSH, F_CONFIG_WCE])
    request(bench, OUT, 0, driver.buffer(new Uint8Array(512)))
    expect(flushes).toBe(3)
  })

  it('gives others their turn after each request for ranges, which are of no more than 512 MiB in all', () => {
    const lengths: number[] = []
    const wide = {
      sizeBytes: 2 ** 40,
      readOnly: false,
      readv: () => {},
      writev: () => {},
      flush: () => {},
      discard: (_: number, length: number) => void lengths.push(length),
      writeZeroes: () => {},
      close: () => {},
    }
    bench = new DeviceBench(new BlkDevice(wide))
    const { driver } = bench
    driver.start(1)
    const [sectors, ranges] = [driver.config(36), driver.config(40)]
    expect(sectors * 512 * ranges).toBe(512 * 2 ** 20)
    const most = rangeBytes(...Array.from({ length: ranges }, (_, i): [number, number] => [i * sectors, sectors]))
    for (let i = 0; i < 3; i++) submit(driver, DISCARD, 0, [driver.buffer(most)])
    for (let turn = 1; turn <= 3; turn++) {
      expect(bench.device.notified(0)).toBe(true)
      expect(lengths).toHaveLength(ranges * turn)
      expect(driver.queues[0]!.takeUsed()).toHaveLength(1)
    }
    expect(bench.device.notified(0)).toBe(false)
    expect(request(bench, DISCARD, 0, driver.buffer(rangeBytes([0, sectors + 1])))).toBe(1)
  })

  it('turns a full disk into an I/O error of that request', () => {
    let full = true
    const seen: unknown[] = []
    const failing = {
      sizeBytes: 4096,
      readOnly: false,
      readv: () => {},
      writev: (_: number, source: IoVector) => {
        if (full) throw new HostError('pwritev', 28)
        seen.push(source.byteLength)
      },
      flush: () => {},
      discard: () => {},
      writeZeroes: () => {},
      close: () => {},
    }
    bench = new DeviceBench(new BlkDevice(failing))
    bench.driver.start(1)
    const data = bench.driver.buffer(new Uint8Array(512))
    expect(request(bench, OUT, 0, data)).toBe(1)
    expect(bench.errors.splice(0)).toMatchObject([{ code: 'ENOSPC' }])
    full = false
    expect(request(bench, OUT, 0, data)).toBe(0)
    expect(seen).toEqual([512])
  })

  it('is saved and restored over the same memory, and notices another disk', () => {
    open()
    const { driver } = bench
    request(bench, OUT, 1, driver.buffer(new Uint8Array(512).fill(9)))
    const saved = saveTransport(bench.transport)
    const copy = new DeviceBench(new BlkDevice(new RawFile(path)), { memory: bench.memory, index: 1 })
    restoreTransport(copy.transport, saved)
    const space = driver.space(512)
    const status = submit(driver, IN, 1, [space])
    copy.run()
    expect(driver.bytes(status)[0]).toBe(0)
    expect(driver.bytes(space)).toEqual(new Uint8Array(512).fill(9))
    copy.close()
    writeFileSync(join(folder, 'small'), new Uint8Array(512))
    const other = new DeviceBench(new BlkDevice(new RawFile(join(folder, 'small'))), { memory: bench.memory, index: 2 })
    expect(() => restoreTransport(other.transport, saved)).toThrow(/had 2048 sectors/)
    other.close()
    // Features that the device does not offer, from either half of them.
    for (const half of [3, 4]) {
      const words = [...(saved as { words: number[] }).words]
      words[half] = (words[half]! | (1 << 27)) >>> 0
      const third = new DeviceBench(new BlkDevice(new RawFile(path)), { memory: bench.memory, index: 3 })
      expect(() => restoreTransport(third.transport, { ...(saved as object), words })).toThrow(/does not offer/)
      third.close()
    }
  })

  it('lets its disk go and takes up what is there then, and keeps one that cannot be written back', () => {
    const other = join(folder, 'other')
    let current = path
    let failing = false
    const held = new HeldDisk(() => {
      const disk = new RawFile(current)
      const flush = disk.flush.bind(disk)
      disk.flush = () => {
        if (failing) throw new HostError('fdatasync', 28)
        flush()
      }
      return disk
    })
    bench = new DeviceBench(new BlkDevice(held))
    bench.driver.start(1)
    const write = (byte: number): number => request(bench, OUT, 0, bench.driver.buffer(new Uint8Array(512).fill(byte)))
    failing = true
    expect(() => bench.device.control('release')).toThrow(/fdatasync/)
    // Nothing was let go: it works as before.
    expect(write(1)).toBe(0)
    failing = false
    bench.device.control('release')
    writeFileSync(other, new Uint8Array(SECTORS * 512))
    current = other
    bench.device.control('reopen')
    expect(write(2)).toBe(0)
    expect([readFileSync(path)[0], readFileSync(other)[0]]).toEqual([1, 2])
    // A disk of another size is not taken; requests fail until the right one is there.
    bench.device.control('release')
    writeFileSync(other, new Uint8Array(512))
    expect(() => bench.device.control('reopen')).toThrow(/put back what was there/)
    expect(write(3)).toBe(1)
    current = path
    bench.device.control('reopen')
    expect(write(4)).toBe(0)
    expect(() => bench.device.control('dance')).toThrow(/knows nothing/)
    expect(bench.errors.splice(0)).toHaveLength(1)
  })
})
