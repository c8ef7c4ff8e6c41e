/** What a hostile guest tries, against every queue of every device. Each time: the device survives, and works after a reset. */
import { afterEach, describe, expect, it } from 'vitest'
import { PollSet } from '../host/poll.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import type { GuestFaultName } from './errors.ts'
import { F_INDIRECT_DESC, F_VERSION_1 } from './features.ts'
import * as reg from './mmio/registers.ts'
import { type DriverModel, type DriverQueue, INDIRECT, NEXT, WRITE } from './testing/driver.ts'
import { type Mounted, SUBJECTS, type Subject } from './testing/subjects.ts'

const RAM = 32 * 2 ** 20

interface Attack {
  readonly what: string
  readonly fault: GuestFaultName
  /** Features that the driver does without. */
  readonly refuse?: readonly number[]
  perform(queue: DriverQueue, driver: DriverModel): void
}

/** Descriptor 0 as given, made available. */
const single =
  (address: number | bigint, length: number, flags: number, next = 0) =>
  (queue: DriverQueue): void => {
    queue.writeDescriptor(0, Number(address), length, flags, next)
    queue.offer(0)
  }

const indirect =
  (length: number, flags = INDIRECT, fill: (queue: DriverQueue, table: number) => void = () => {}) =>
  (queue: DriverQueue, driver: DriverModel): void => {
    const table = driver.allocate(16 * 1100)
    fill(queue, table)
    queue.writeDescriptor(0, table, length, flags, 1)
    queue.offer(0)
  }

const ATTACKS: readonly Attack[] = [
  {
    what: 'avail.idx ahead by more than the queue',
    fault: 'avail-index',
    perform: queue => queue.setAvailIndex(queue.size + 1),
  },
  { what: 'avail.idx going backwards', fault: 'avail-index', perform: queue => queue.setAvailIndex(0xffff) },
  { what: 'a head beyond the table', fault: 'descriptor-index', perform: queue => queue.offer(queue.size) },
  { what: 'a descriptor that follows itself', fault: 'descriptor-loop', perform: single(0x20_0000, 16, NEXT, 0) },
  {
    what: 'a loop of two',
    fault: 'descriptor-loop',
    perform: queue => {
      queue.writeDescriptor(1, 0x20_0000, 16, NEXT, 0)
      single(0x20_0000, 16, NEXT, 1)(queue)
    },
  },
  { what: 'next beyond the table', fault: 'descriptor-index', perform: single(0x20_0000, 16, NEXT, 0xffff) },
  { what: 'a buffer of no bytes', fault: 'descriptor-length', perform: single(0x20_0000, 0, WRITE) },
  { what: 'a buffer that crosses the end of RAM', fault: 'descriptor-address', perform: single(RAM - 8, 16, WRITE) },
  { what: 'a buffer in the MMIO hole', fault: 'descriptor-address', perform: single(0xc000_1000, 16, WRITE) },
  { what: 'a buffer above all memory', fault: 'descriptor-address', perform: single(0x1_0000_0000, 16, 0) },
  {
    what: 'address + length past 2^64',
    fault: 'descriptor-address',
    perform: single(2n ** 64n - 2048n, 0xffff, WRITE),
  },
  { what: 'a length of 4 GiB - 1', fault: 'descriptor-address', perform: single(0, 0xffff_ffff, WRITE) },
  {
    what: 'more than 4 GiB in one chain',
    fault: 'descriptor-length',
    perform: indirect(16 * 1024, INDIRECT, (queue, table) => {
      for (let i = 0; i < 1024; i++) queue.writeDescriptor(i, 0, RAM, WRITE | (i < 1023 ? NEXT : 0), i + 1, table)
    }),
  },
  {
    what: 'a readable buffer after a writable one',
    fault: 'descriptor-order',
    perform: queue => {
      queue.writeDescriptor(1, 0x20_0000, 16, 0, 0)
      single(0x20_0000, 16, WRITE | NEXT, 1)(queue)
    },
  },
  {
    what: 'an indirect table inside an indirect table',
    fault: 'indirect-nested',
    perform: indirect(32, INDIRECT, (queue, table) => queue.writeDescriptor(0, table, 16, INDIRECT, 0, table)),
  },
  { what: 'an indirect table and a next', fault: 'indirect-nested', perform: indirect(16, INDIRECT | NEXT) },
  { what: 'an odd-sized indirect table', fault: 'indirect-size', perform: indirect(17) },
  { what: 'an empty indirect table', fault: 'indirect-size', perform: indirect(0) },
  { what: 'an indirect table that is too long', fault: 'indirect-size', perform: indirect(16 * 1025) },
  { what: 'an indirect table outside RAM', fault: 'descriptor-address', perform: single(RAM, 16, INDIRECT) },
  {
    what: 'an indirect table that loops',
    fault: 'descriptor-loop',
    perform: indirect(32, INDIRECT, (queue, table) => queue.writeDescriptor(0, 0x20_0000, 16, NEXT, 0, table)),
  },
  {
    what: 'an indirect next beyond its table',
    fault: 'descriptor-index',
    perform: indirect(32, INDIRECT, (queue, table) => queue.writeDescriptor(0, 0x20_0000, 16, NEXT, 2, table)),
  },
  {
    what: 'an indirect table that was not negotiated',
    fault: 'indirect-unexpected',
    refuse: [F_INDIRECT_DESC],
    perform: indirect(16),
  },
]

let mounted: Mounted
afterEach(() => {
  mounted.close()
  expect(mounted.bench.errors).toEqual([])
})

const cases = SUBJECTS.flatMap(subject => subject.attackable.map(queue => [subject.name, queue, subject] as const))

describe.each(cases)('%s, queue %i', (_, queue, subject: Subject) => {
  it.each(ATTACKS.map(attack => [attack.what, attack] as const))('%s', (_what, attack) => {
    mounted = subject.mount({ sizeMib: 32 })
    const { bench } = mounted
    const { driver } = bench
    driver.start(subject.queues, undefined, attack.refuse ?? [])
    bench.run()
    bench.takeInterrupts()
    attack.perform(driver.queues[queue]!, driver)
    mounted.provoke(queue)
    bench.run()
    expect(bench.metrics).toMatchObject({ guestFaults: 1, lastGuestFault: attack.fault })
    expect(driver.status & reg.STATUS_NEEDS_RESET).toBe(reg.STATUS_NEEDS_RESET)
    expect(driver.read(reg.INTERRUPT_STATUS) & reg.INTERRUPT_CONFIG_CHANGE).not.toBe(0)
    expect(bench.takeInterrupts()).toBeGreaterThan(0)
    // Until the reset it does nothing more.
    driver.queues[queue]!.ring()
    bench.run()
    expect(bench.metrics.guestFaults).toBe(1)
    driver.start(subject.queues)
    expect(driver.status & reg.STATUS_NEEDS_RESET).toBe(0)
    expect(mounted.works()).toBe(true)
  })
})

describe.each(SUBJECTS.map(subject => [subject.name, subject] as const))('%s', (_, subject) => {
  const mount = (): DriverModel => {
    mounted = subject.mount({ sizeMib: 32 })
    return mounted.bench.driver
  }

  it('does not notice queue registers and features rewritten after DRIVER_OK', () => {
    const driver = mount()
    driver.start(subject.queues)
    for (let queue = 0; queue < subject.queues; queue++) {
      driver.write(reg.QUEUE_SEL, queue)
      driver.writeQueueRegisters(3, 1, 1, 1)
      driver.write(reg.QUEUE_READY, 0)
      expect(driver.read(reg.QUEUE_READY)).toBe(1)
    }
    driver.writeFeatures([63])
    expect(mounted.bench.metrics.badAccesses).toBe(subject.queues * 8 + 2)
    expect(mounted.works()).toBe(true)
  })

  it('counts a notify for a queue that does not exist', () => {
    const driver = mount()
    driver.start(subject.queues)
    for (const queue of [subject.queues, 0xffff, 0xffff_ffff]) driver.write(reg.QUEUE_NOTIFY, queue)
    expect(mounted.bench.metrics.badAccesses).toBe(3)
    expect(mounted.works()).toBe(true)
  })

  it.each<[string, GuestFaultName, [number, number, number, number]]>([
    ['a size of 0', 'queue-size', [0, 0x10_0000, 0x10_2000, 0x10_4000]],
    ['a size that is no power of two', 'queue-size', [3, 0x10_0000, 0x10_2000, 0x10_4000]],
    ['a size above the largest', 'queue-size', [32768, 0x10_0000, 0x10_2000, 0x10_4000]],
    ['a misaligned descriptor table', 'queue-alignment', [8, 0x10_0008, 0x10_2000, 0x10_4000]],
    ['a misaligned driver area', 'queue-alignment', [8, 0x10_0000, 0x10_2001, 0x10_4000]],
    ['a misaligned device area', 'queue-alignment', [8, 0x10_0000, 0x10_2000, 0x10_4002]],
    ['a descriptor table across the end of RAM', 'queue-not-in-ram', [8, RAM - 64, 0x10_2000, 0x10_4000]],
    ['a driver area outside RAM', 'queue-not-in-ram', [8, 0x10_0000, RAM, 0x10_4000]],
    ['a device area at the end of the address space', 'queue-not-in-ram', [8, 0x10_0000, 0x10_2000, 2 ** 64 - 2048]],
  ])('is not activated with %s', (_what, fault, setup) => {
    const driver = mount()
    driver.negotiate()
    driver.write(reg.QUEUE_SEL, 0)
    driver.writeQueueRegisters(...setup)
    driver.write(reg.QUEUE_READY, 1)
    driver.driverOk()
    expect(driver.status & reg.STATUS_NEEDS_RESET).toBe(reg.STATUS_NEEDS_RESET)
    expect(mounted.bench.metrics).toMatchObject({ guestFaults: 1, lastGuestFault: fault })
    driver.start(subject.queues)
    expect(mounted.works()).toBe(true)
  })

  it('negotiates as the specification says, and the status only goes forward', () => {
    const driver = mount()
    driver.write(reg.STATUS, reg.STATUS_DRIVER_OK)
    expect(driver.status).toBe(0)
    driver.write(reg.STATUS, reg.STATUS_ACKNOWLEDGE)
    driver.writeFeatures([F_VERSION_1])
    driver.write(reg.STATUS, reg.STATUS_ACKNOWLEDGE | reg.STATUS_DRIVER)
    // Features from before DRIVER did not count.
    driver.write(reg.STATUS, driver.status | reg.STATUS_FEATURES_OK)
    expect(driver.status & reg.STATUS_FEATURES_OK).toBe(0)
    driver.writeFeatures([F_VERSION_1, 62])
    driver.write(reg.STATUS, driver.status | reg.STATUS_FEATURES_OK)
    expect(driver.status & reg.STATUS_FEATURES_OK).toBe(0)
    driver.writeFeatures([...driver.offered()].filter(bit => bit !== F_VERSION_1))
    driver.write(reg.STATUS, driver.status | reg.STATUS_FEATURES_OK)
    expect(driver.status & reg.STATUS_FEATURES_OK).toBe(0)
    driver.write(reg.STATUS, driver.status | reg.STATUS_DRIVER_OK)
    expect(driver.status).toBe(reg.STATUS_ACKNOWLEDGE | reg.STATUS_DRIVER)
    driver.writeFeatures([F_VERSION_1])
    driver.write(reg.STATUS, driver.status | reg.STATUS_FEATURES_OK)
    driver.write(reg.STATUS, reg.STATUS_ACKNOWLEDGE)
    driver.write(reg.STATUS, 0xff00)
    expect(driver.status).toBe(reg.STATUS_ACKNOWLEDGE | reg.STATUS_DRIVER | reg.STATUS_FEATURES_OK)
    driver.write(reg.STATUS, driver.status | reg.STATUS_FAILED)
    driver.write(reg.QUEUE_NUM, 8)
    expect(driver.status & reg.STATUS_FAILED).toBe(reg.STATUS_FAILED)
    driver.start(subject.queues)
    expect(mounted.works()).toBe(true)
  })

  it('is left alone by odd accesses to its window', () => {
    const driver = mount()
    driver.start(subject.queues)
    const data = new DataView(new ArrayBuffer(8))
    for (const size of [1, 2, 4, 8]) {
      for (let offset = 0; offset + size <= 0x1000; offset += 1) {
        if (offset === reg.STATUS || offset === reg.QUEUE_NOTIFY) continue
        driver.window.read(offset, size, data)
        for (let i = 0; i < 8; i++) data.setUint8(i, 0xff)
        if (offset < reg.CONFIG) driver.window.write(offset, size, data)
      }
    }
    for (const offset of [reg.SHM_LEN_LOW, reg.SHM_LEN_HIGH, reg.SHM_BASE_LOW, reg.SHM_BASE_HIGH]) {
      expect(driver.read(offset)).toBe(0xffff_ffff)
    }
    expect([driver.read(reg.MAGIC_VALUE), driver.read(reg.VERSION)]).toEqual([0x74726976, 2])
    expect(mounted.works()).toBe(true)
  })

  it('completes nothing after a reset', () => {
    const driver = mount()
    const { bench } = mounted
    driver.start(subject.queues)
    for (const queue of subject.attackable) {
      driver.queues[queue]!.add([driver.space(64)])
      mounted.provoke(queue)
    }
    driver.write(reg.STATUS, 0)
    bench.takeInterrupts()
    bench.memory.slice(0x10_0000, 0x10_0000).fill(0x33)
    bench.run()
    expect(bench.memory.slice(0x10_0000, 0x10_0000).every(byte => byte === 0x33)).toBe(true)
    expect(bench.takeInterrupts()).toBe(0)
    expect(driver.read(reg.INTERRUPT_STATUS)).toBe(0)
  })

  it('works without EVENT_IDX and without indirect descriptors, and with small queues', () => {
    const driver = mount()
    driver.start(subject.queues, undefined, [29])
    expect(mounted.works()).toBe(true)
    driver.start(subject.queues, undefined, [28, 29])
    expect(mounted.works()).toBe(true)
    driver.start(subject.queues, 4)
    expect(mounted.works()).toBe(true)
  })
})

describe('devices that share a worker', () => {
  it.each(SUBJECTS.map(subject => [subject.name, subject] as const))('go on when %s needs a reset', (_, subject) => {
    const memory = GuestMemory.create(64)
    const poll = new PollSet()
    mounted = subject.mount({ memory, poll, index: 0 })
    const others = SUBJECTS.map((other, i) => {
      const neighbour = other.mount({ memory, poll, index: i + 1 })
      neighbour.bench.driver.start(other.queues)
      return neighbour
    })
    mounted.bench.driver.start(subject.queues)
    mounted.bench.driver.queues[subject.attackable[0]!]!.setAvailIndex(0x7777)
    mounted.provoke(subject.attackable[0]!)
    mounted.bench.run()
    expect(mounted.bench.metrics.guestFaults).toBe(1)
    for (const other of others) {
      expect(other.works()).toBe(true)
      other.close()
    }
    poll.close()
  })
})
