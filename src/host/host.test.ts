import { constants, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { hearBell, ringBell } from './bell.ts'
import { HostError } from './errors.ts'
import { createEventFd, drainEventFd, signalEventFd } from './event-fd.ts'
import {
  closeFd,
  openFd,
  punchHole,
  readAt,
  readVectorAt,
  truncate,
  writeAt,
  writeVectorAt,
  zeroRange,
} from './file.ts'
import { IoVector } from './io-vector.ts'
import { EDGES, POLLIN, PollSet } from './poll.ts'
import { TimerFd } from './testing/timer-fd.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-host-'))
afterAll(() => rmSync(folder, { recursive: true }))

describe('files', () => {
  it('turns errno into a typed error that names the call and its subject', () => {
    const path = join(folder, 'absent')
    try {
      openFd(path, constants.O_RDONLY)
      expect.unreachable()
    } catch (error) {
      expect(error).toBeInstanceOf(HostError)
      expect(error).toMatchObject({ code: 'ENOENT', syscall: 'open', message: `open ${path}: ENOENT` })
    }
  })

  it('scatters and gathers through one call, and reads zeros past the end', () => {
    const memory = new Uint8Array(new WebAssembly.Memory({ initial: 1, maximum: 1, shared: true }).buffer)
    const path = join(folder, 'vector')
    const fd = openFd(path, constants.O_RDWR | constants.O_CREAT)
    memory.set([1, 2, 3, 4, 5, 6, 7, 8], 100)
    const vector = new IoVector(memory, 4)
    expect(vector.push(104, 4)).toBe(true)
    expect(vector.push(100, 4)).toBe(true)
    expect(vector.push(65530, 7)).toBe(false)
    writeVectorAt(fd, vector, 3)
    expect([...readFileSync(path)]).toEqual([0, 0, 0, 5, 6, 7, 8, 1, 2, 3, 4])
    vector.clear()
    memory.fill(0xff, 200, 220)
    vector.push(200, 3)
    vector.push(210, 8)
    readVectorAt(fd, vector, 5)
    expect([...memory.subarray(200, 203)]).toEqual([7, 8, 1])
    expect([...memory.subarray(210, 218)]).toEqual([2, 3, 4, 0, 0, 0, 0, 0])
    const part = new IoVector(memory, 4)
    part.setToRangeOf(vector, 2, 3)
    const out = new Uint8Array(3)
    part.copyTo(out)
    expect([...out]).toEqual([1, 2, 3])
    vector.fill(9, 2, 2)
    expect([...memory.subarray(202, 203), ...memory.subarray(210, 212)]).toEqual([9, 9, 3])
    closeFd(fd)
  })

  it('punches holes and zeroes ranges', () => {
    const fd = openFd(join(folder, 'holes'), constants.O_RDWR | constants.O_CREAT)
    writeAt(fd, new Uint8Array(16384).fill(7), 0)
    punchHole(fd, 4096, 4096)
    zeroRange(fd, 12288, 8192)
    truncate(fd, 20480)
    const all = new Uint8Array(32768)
    expect(readAt(fd, all, 0)).toBe(20480)
    expect([all[4095], all[4096], all[8191], all[8192], all[12287], all[12288]]).toEqual([7, 0, 0, 7, 7, 0])
    closeFd(fd)
  })
})

describe('eventfd and poll', () => {
  it('polls for what is expected, and sleeps when it does not come in time', () => {
    const [timer, set] = [new TimerFd(), new PollSet()]
    let rung = 0
    set.add(timer.fd, POLLIN, () => {
      timer.drain()
      rung++
    })
    // Longer than the alarm: it is found while looking. Shorter: the wait that follows finds it.
    for (const expected of [1000, 0.01]) {
      timer.set(2)
      set.expect(expected)
      expect(set.wait(10_000)).toBe(1)
    }
    set.expect(0.01)
    expect(set.wait(1)).toBe(0)
    expect(rung).toBe(2)
    set.close()
    closeFd(timer.fd)
  })

  it('wakes a poll, calls the handler once, and drains', () => {
    const bell = createEventFd()
    const quiet = createEventFd()
    const set = new PollSet()
    let rung = 0
    set.add(quiet, POLLIN, () => expect.unreachable())
    set.add(bell, POLLIN, () => {
      rung += drainEventFd(bell)
    })
    expect(set.wait(0)).toBe(0)
    signalEventFd(bell)
    signalEventFd(bell)
    expect(set.wait(1000)).toBe(1)
    expect(rung).toBe(2)
    expect(drainEventFd(bell)).toBe(0)
    set.remove(quiet)
    expect(set.size).toBe(1)
    signalEventFd(bell)
    expect(set.wait(1000)).toBe(1)
    set.close()
    closeFd(bell)
    closeFd(quiet)
  })

  it('tells of edges once, without anybody reading', () => {
    const bell = createEventFd()
    const set = new PollSet()
    let rung = 0
    set.add(bell, POLLIN | EDGES, () => rung++)
    const seen: number[] = []
    for (const signals of [0, 2, 0, 1, 0]) {
      for (let i = 0; i < signals; i++) signalEventFd(bell)
      seen.push(set.wait(0))
    }
    expect([seen, rung]).toEqual([[0, 1, 0, 1, 0], 2])
    set.close()
    closeFd(bell)
  })

  it('does not take a new descriptor for the one that had its number', () => {
    const set = new PollSet()
    const [first, second] = [createEventFd(), createEventFd()]
    const heard: string[] = []
    let third = -1
    const closeAndOpen = (name: string, other: number) => (): void => {
      heard.push(name)
      if (third >= 0) return
      // Both are ready: the other one goes, and its number comes back, before its turn.
      set.forget(other)
      closeFd(other)
      third = createEventFd()
      expect(third).toBe(other)
      set.add(third, POLLIN | EDGES, () => heard.push('third'))
    }
    set.add(first, POLLIN | EDGES, closeAndOpen('first', second))
    set.add(second, POLLIN | EDGES, closeAndOpen('second', first))
    signalEventFd(first)
    signalEventFd(second)
    expect(set.wait(0)).toBe(2)
    expect(heard).toHaveLength(1)
    signalEventFd(third)
    expect(set.wait(0)).toBe(1)
    expect(heard[1]).toBe('third')
    set.close()
    for (const fd of [third, third === first ? second : first]) closeFd(fd)
  })

  it('rings alarms at their moment, once, and not those that were taken back', () => {
    const set = new PollSet()
    const rung: string[] = []
    const [soon, never, gone] = ['soon', 'never', 'gone'].map(name => set.addAlarm(() => rung.push(name)))
    const now = set.now()
    soon!.at = now + 5.5
    never!.at = now + 2
    never!.at = Number.POSITIVE_INFINITY
    gone!.at = now + 1
    set.removeAlarm(gone!)
    expect(set.wait(0)).toBe(0)
    expect(set.wait(-1)).toBe(1)
    expect(rung).toEqual(['soon'])
    expect(performance.now()).toBeGreaterThanOrEqual(now + 5.5)
    expect(set.wait(1)).toBe(0)
    // One that is late rings even where nobody sleeps.
    soon!.at = now
    expect(set.wait(0)).toBe(1)
    expect(rung).toEqual(['soon', 'soon'])
    set.close()
  })

  it('has a clock that stands still for as long as a turn takes', () => {
    const set = new PollSet()
    let inTurn: number[] = []
    set.later(() => {
      const first = set.now()
      while (performance.now() < first + 2);
      inTurn = [set.now() - first, performance.now() - first]
    })
    set.wait(0)
    expect(inTurn[0]).toBe(0)
    expect(inTurn[1]).toBeGreaterThanOrEqual(2)
    const outside = set.now()
    while (performance.now() < outside + 1);
    expect(set.now()).toBeGreaterThan(outside)
    set.close()
  })

  it('leaves no descriptor of its own behind', () => {
    const open = (): number => readdirSync('/proc/self/fd').length
    const before = open()
    const set = new PollSet()
    set.wait(0)
    expect(open()).toBe(before + 1)
    set.close()
    set.close()
    expect(open()).toBe(before)
  })

  it('runs tasks later without sleeping, and others when it would sleep', () => {
    const set = new PollSet()
    const done: string[] = []
    set.atRest(() => done.push('rest'))
    set.later(() => {
      done.push('later')
      set.later(() => done.push('again'))
    })
    // Whoever does not wait is busy: no rest yet.
    expect(set.wait(0)).toBe(1)
    expect(done).toEqual(['later'])
    expect(set.wait(10_000)).toBe(2)
    expect(done).toEqual(['later', 'again', 'rest'])
    set.atRest(() => done.push('soon'))
    const end = performance.now() + 1000
    while (set.wait(0) === 0 && performance.now() < end);
    expect(done.at(-1)).toBe('soon')
    expect(set.wait(0)).toBe(0)
    set.close()
  })

  it('rings by a call where the listener is on this thread', () => {
    const bell = createEventFd()
    let heard = 0
    hearBell(bell, () => heard++)
    ringBell(bell)
    expect([heard, drainEventFd(bell)]).toEqual([1, 0])
    hearBell(bell, undefined)
    ringBell(bell)
    expect([heard, drainEventFd(bell)]).toEqual([1, 1])
    closeFd(bell)
  })
})
