import { afterEach, describe, expect, it } from 'vitest'
import { closeFd } from '../../host/file.ts'
import { check, sys } from '../../host/libc.ts'
import { readBytes, writeBytes } from '../../host/unix-socket.ts'
import { INTERRUPT_STATUS } from '../mmio/registers.ts'
import { restoreTransport, saveTransport } from '../mmio/state.ts'
import { DeviceBench } from '../testing/bench.ts'
import { ConsoleDevice } from './device.ts'
import { createConsoleStreams } from './streams.ts'

function pipe(): [number, number] {
  const ends = new Int32Array(2)
  check(sys.pipe2(ends, 0o4000), 'pipe2')
  return [ends[0]!, ends[1]!]
}

let bench: DeviceBench<ConsoleDevice>
let fds: number[] = []

function open(whenFull?: 'drop' | 'wait'): { input: number; output: number } {
  const [inputFd, input] = pipe()
  const [output, outputFd] = pipe()
  fds = [inputFd, input, output, outputFd]
  bench = new DeviceBench(
    new ConsoleDevice({ inputFd, outputFd, columns: 100, rows: 40, ...(whenFull ? { whenFull } : {}) }),
  )
  bench.driver.start(2)
  bench.run()
  return { input, output }
}

function takeOutput(output: number): string {
  const buffer = new Uint8Array(1 << 20)
  const got = readBytes(output, buffer)
  return Buffer.from(buffer.subarray(0, Math.max(got, 0))).toString()
}

afterEach(() => {
  bench.close()
  for (const fd of fds) closeFd(fd)
  fds = []
  expect(bench.errors).toEqual([])
})

describe('the console', () => {
  it('prints many bytes at once, from scattered buffers', () => {
    const { output } = open()
    const [, tx] = bench.driver.queues
    tx!.add([bench.driver.buffer(Buffer.from('hello, ')), bench.driver.buffer(Buffer.from('world\n'))])
    tx!.add([bench.driver.buffer(Buffer.from('again\n'))])
    tx!.kick()
    bench.run()
    expect(takeOutput(output)).toBe('hello, world\nagain\n')
    expect(tx!.takeUsed().map(used => used.length)).toEqual([0, 0])
  })

  it('reads input when the guest has room, and keeps it waiting in the pipe otherwise', () => {
    const { input } = open()
    writeBytes(input, Buffer.from('typed before there was a buffer'))
    expect(bench.run()).toBe(0)
    const [rx] = bench.driver.queues
    const spaces = [bench.driver.space(10), bench.driver.space(100)]
    for (const space of spaces) rx!.add([space])
    rx!.kick()
    bench.run()
    const used = rx!.takeUsed()
    expect(used.map(entry => entry.length)).toEqual([10, 21])
    expect(Buffer.from(bench.driver.bytes(spaces[1]!).subarray(0, 21)).toString()).toBe(
      'e there was a buffer'.padStart(21, 'r'),
    )
    rx!.add([bench.driver.space(10)])
    rx!.kick()
    bench.run()
    writeBytes(input, Buffer.from('x'))
    bench.run()
    expect(rx!.takeUsed().map(entry => entry.length)).toEqual([1])
  })

  it('does not spin when the input has ended', () => {
    const { input } = open()
    bench.driver.queues[0]!.add([bench.driver.space(10)])
    bench.driver.queues[0]!.kick()
    bench.run()
    closeFd(input)
    fds.splice(fds.indexOf(input), 1)
    expect(bench.run(100)).toBeLessThan(5)
  })

  it('drops output that nobody reads rather than stop the guest', () => {
    const { output } = open()
    const [, tx] = bench.driver.queues
    const line = bench.driver.buffer(new Uint8Array(65536).fill(97))
    for (let i = 0; i < 4; i++) tx!.add([line])
    tx!.kick()
    bench.run()
    expect(tx!.takeUsed()).toHaveLength(4)
    expect(bench.metrics).toMatchObject({ bytesOut: 65536, droppedBytes: 3 * 65536 })
    expect(takeOutput(output)).toHaveLength(65536)
  })

  it('waits for a reader instead when told to, and loses nothing', () => {
    const { output } = open('wait')
    const [, tx] = bench.driver.queues
    for (let i = 0; i < 3; i++) tx!.add([bench.driver.buffer(new Uint8Array(50_000).fill(97 + i))])
    tx!.kick()
    bench.run()
    expect(tx!.takeUsed()).toHaveLength(1)
    let all = ''
    for (let i = 0; i < 10; i++) {
      all += takeOutput(output)
      bench.run()
    }
    expect(all).toBe('a'.repeat(50_000) + 'b'.repeat(50_000) + 'c'.repeat(50_000))
    expect(tx!.takeUsed()).toHaveLength(2)
  })

  it('tells the guest of its size when it has given its first buffer: Linux does not look before', () => {
    open()
    const { driver } = bench
    expect([driver.read(INTERRUPT_STATUS), bench.takeInterrupts()]).toEqual([0, 0])
    driver.queues[0]!.add([driver.space(10)])
    driver.queues[0]!.kick()
    bench.run()
    expect([driver.read(INTERRUPT_STATUS), bench.takeInterrupts()]).toEqual([2, 1])
  })

  it('tells the guest of a new size, through a new generation', () => {
    open()
    const { driver } = bench
    expect([driver.config(0, 2), driver.config(2, 2)]).toEqual([100, 40])
    const generation = driver.read(0xfc)
    bench.takeInterrupts()
    bench.device.control({ resize: [132, 50] })
    expect([driver.config(0, 2), driver.config(2, 2)]).toEqual([132, 50])
    expect(driver.read(0xfc)).not.toBe(generation)
    expect([driver.read(INTERRUPT_STATUS) & 2, bench.takeInterrupts()]).toEqual([2, 1])
    expect(() => bench.device.control({ resize: [0, 1] })).toThrow(/the width/)
  })

  it('is saved in the middle of a buffer, and goes on from there', () => {
    const { output } = open('wait')
    const [, tx] = bench.driver.queues
    tx!.add([bench.driver.buffer(new Uint8Array(100_000).fill(122))])
    tx!.kick()
    bench.run()
    const first = takeOutput(output)
    const saved = saveTransport(bench.transport)
    const copy = new DeviceBench(new ConsoleDevice({ inputFd: fds[0]!, outputFd: fds[3]!, whenFull: 'wait' }), {
      memory: bench.memory,
      index: 1,
    })
    restoreTransport(copy.transport, saved)
    copy.run()
    expect(first.length + takeOutput(output).length).toBe(100_000)
    expect(copy.driver.config(0, 2)).toBe(100)
    copy.close()
  })

  it('has Node streams at its ends', async () => {
    const streams = createConsoleStreams()
    bench = new DeviceBench(new ConsoleDevice(streams))
    bench.driver.start(2)
    const [rx, tx] = bench.driver.queues
    const space = bench.driver.space(100)
    rx!.add([space])
    tx!.add([bench.driver.buffer(Buffer.from('out'))])
    rx!.kick()
    tx!.kick()
    bench.run()
    const heard = await new Promise<Buffer>(resolve => streams.output.once('data', resolve))
    expect(heard.toString()).toBe('out')
    await new Promise(resolve => streams.input.write('in', resolve))
    bench.runUntil(() => bench.metrics.bytesIn === 2)
    expect(Buffer.from(bench.driver.bytes(space).subarray(0, 2)).toString()).toBe('in')
    streams.close()
  })
})
