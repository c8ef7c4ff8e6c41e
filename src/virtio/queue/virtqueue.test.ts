import { beforeEach, describe, expect, it } from 'vitest'
import { IoVector } from '../../host/io-vector.ts'
import { DirtyLog } from '../../memory/dirty-log.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { RAM_OFFSET } from '../../memory/layout.ts'
import { Virtqueue } from './virtqueue.ts'

const DESC = 0x1000
const AVAIL = 0x2000
const USED = 0x3000
const SIZE = 8

let memory: GuestMemory
let log: DirtyLog
let queue: Virtqueue
let readable: IoVector
let writable: IoVector

beforeEach(() => {
  memory = GuestMemory.create(2)
  log = new DirtyLog(memory)
  queue = new Virtqueue(memory, log, 0, 256)
  readable = new IoVector(memory.bytes)
  writable = new IoVector(memory.bytes)
  for (let i = 0; i < SIZE; i++) {
    memory.writeU64(DESC + 16 * i, BigInt(0x8000 + 0x100 * i))
    memory.writeU32(DESC + 16 * i + 8, 0x40)
  }
})

const start = (eventIdx: boolean, at = 0): void => {
  memory.writeU16(AVAIL + 2, at)
  memory.writeU16(USED + 2, at)
  queue.start({ size: SIZE, desc: DESC, driver: AVAIL, device: USED }, eventIdx, true, { nextAvail: at, nextUsed: at })
}

/** Makes descriptor `head` available, as the `idx`th buffer ever. */
const offer = (idx: number, head: number): void => {
  memory.writeU16(AVAIL + 4 + 2 * (idx % SIZE), head)
  memory.writeU16(AVAIL + 2, (idx + 1) & 0xffff)
}

const usedEvent = (value: number): void => memory.writeU16(AVAIL + 4 + 2 * SIZE, value & 0xffff)

describe('a split queue', () => {
  it('takes buffers in order and returns them in any', () => {
    start(false)
    offer(0, 3)
    offer(1, 5)
    expect(queue.pop(readable, writable)).toBe(3)
    expect([...readable.offsets.subarray(0, readable.count)]).toEqual([RAM_OFFSET + 0x8300])
    expect(queue.pop(readable, writable)).toBe(5)
    expect(queue.pop(readable, writable)).toBe(-1)
    queue.push(5, 11)
    queue.push(3, 0)
    expect(memory.readU16(USED + 2)).toBe(0)
    expect(queue.publish()).toBe(true)
    expect(memory.readU16(USED + 2)).toBe(2)
    expect([4, 8, 12, 16].map(at => memory.readU32(USED + at))).toEqual([5, 11, 3, 0])
    expect(queue.publish()).toBe(false)
  })

  it('goes on where indices wrap, many times over', () => {
    start(true, 0xfffd)
    usedEvent(0xfffd)
    for (let i = 0xfffd; i < 0xfffd + 3 * 0x1_0000; i++) {
      offer(i, i % SIZE)
      if (queue.pop(readable, writable) !== i % SIZE) throw new Error(`wrong head at ${i}`)
      readable.clear()
      usedEvent(i)
      queue.push(i % SIZE, 0)
      if (!queue.publish()) throw new Error(`no interrupt at ${i}`)
    }
    expect(queue.position).toEqual({ nextAvail: 0xfffd, nextUsed: 0xfffd })
  })

  it('interrupts exactly when used_event is passed', () => {
    start(true)
    usedEvent(2)
    const interrupts = Array.from({ length: 5 }, (_, i) => {
      offer(i, 0)
      queue.pop(readable, writable)
      queue.push(0, 0)
      return queue.publish()
    })
    expect(interrupts).toEqual([false, false, true, false, false])
    // A batch that passes it interrupts once.
    usedEvent(6)
    for (let i = 5; i < 8; i++) {
      offer(i, 0)
      queue.pop(readable, writable)
      queue.push(0, 0)
    }
    expect([queue.publish(), queue.publish()]).toEqual([true, false])
  })

  it('does as the flags say without EVENT_IDX', () => {
    start(false)
    offer(0, 0)
    queue.quiet()
    expect(memory.readU16(USED)).toBe(1)
    queue.pop(readable, writable)
    queue.push(0, 0)
    memory.writeU16(AVAIL, 1)
    expect(queue.publish()).toBe(false)
    expect(queue.rearm()).toBe(false)
    expect(memory.readU16(USED)).toBe(0)
  })

  it('asks for a doorbell at the next buffer, and notices one that came meanwhile', () => {
    start(true)
    offer(0, 0)
    queue.pop(readable, writable)
    expect(queue.rearm()).toBe(false)
    expect(memory.readU16(USED + 4 + 8 * SIZE)).toBe(1)
    offer(1, 1)
    expect(queue.rearm()).toBe(true)
    // Those that are there do not suffice: the doorbell is for one more.
    expect(queue.hasAvailable).toBe(true)
    expect(queue.rearmForMore()).toBe(false)
    expect(memory.readU16(USED + 4 + 8 * SIZE)).toBe(2)
    offer(2, 2)
    expect(queue.rearmForMore()).toBe(true)
  })

  it('gives buffers back untouched', () => {
    start(true)
    offer(0, 4)
    offer(1, 6)
    queue.pop(readable, writable)
    queue.pop(readable, writable)
    queue.unpop(2)
    expect([queue.pop(readable, writable), queue.pop(readable, writable), queue.pop(readable, writable)]).toEqual([
      4, 6, -1,
    ])
  })

  it('follows chains and indirect tables, at any alignment of the table', () => {
    start(true)
    memory.writeU16(DESC + 12, 1)
    memory.writeU16(DESC + 14, 2)
    memory.writeU16(DESC + 16 * 2 + 12, 2)
    offer(0, 0)
    queue.pop(readable, writable)
    expect([readable.byteLength, writable.byteLength]).toEqual([0x40, 0x40])
    const table = 0x5003
    for (const [i, flags] of [1, 2].entries()) {
      memory.writeU64(table + 16 * i, BigInt(0x9000 + i))
      memory.writeU32(table + 16 * i + 8, 7)
      memory.writeU16(table + 16 * i + 12, flags)
      memory.writeU16(table + 16 * i + 14, 1)
    }
    memory.writeU64(DESC + 16 * 7, BigInt(table))
    memory.writeU32(DESC + 16 * 7 + 8, 32)
    memory.writeU16(DESC + 16 * 7 + 12, 4)
    offer(1, 7)
    readable.clear()
    writable.clear()
    queue.pop(readable, writable)
    expect([readable.offsets[0], writable.offsets[0]]).toEqual([RAM_OFFSET + 0x9000, RAM_OFFSET + 0x9001])
  })

  it('notes what it and its device write, while the log is on', () => {
    start(true)
    offer(0, 1)
    memory.writeU16(DESC + 16 + 12, 2)
    queue.pop(readable, writable)
    log.setEnabled(true)
    queue.pushWritten(1, writable, 0x40)
    queue.publish()
    const bits = log.take()
    const pages = [...bits.entries()].flatMap(([i, byte]) =>
      [0, 1, 2, 3, 4, 5, 6, 7].filter(bit => byte & (1 << bit)).map(bit => 8 * i + bit),
    )
    expect(pages).toEqual([USED >> 12, 0x8100 >> 12])
    expect(log.take().every(byte => byte === 0)).toBe(true)
    log.setEnabled(false)
  })
})
