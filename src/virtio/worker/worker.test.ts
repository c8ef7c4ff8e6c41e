import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { assetUrl } from '../../host/assets.ts'
import { drainEventFd } from '../../host/event-fd.ts'
import { MainLoop } from '../../host/main-loop.ts'
import { POLLIN, PollSet } from '../../host/poll.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import type { VirtioDevice } from '../device.ts'
import { virtioMmioHandler } from '../mmio/handler.ts'
import { DeviceLoad } from '../mmio/load.ts'
import { INTERRUPT_ACK, INTERRUPT_STATUS, STATUS, STATUS_NEEDS_RESET } from '../mmio/registers.ts'
import type { VirtioSlot } from '../slot.ts'
import { closeSlot, makeSlot } from '../testing/bench.ts'
import { blkHeader, IN, OUT } from '../testing/blk-driver.ts'
import { DriverModel } from '../testing/driver.ts'
import { RawFile } from '../testing/raw-file.ts'
import { DeviceWorker } from './device-worker.ts'
import { HostedDevice } from './hosted-device.ts'
import { LocalDevices } from './local-devices.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-worker-'))
afterAll(() => rmSync(folder, { recursive: true }))

const disk = (name: string): string => {
  const path = join(folder, name)
  writeFileSync(path, new Uint8Array(1 << 20))
  return path
}

/** Waits for the device's interrupt as a vCPU would. */
function awaitInterrupt(slot: VirtioSlot): void {
  const { fd } = slot.interrupt as { fd: number }
  const set = new PollSet()
  set.add(fd, POLLIN, () => void drainEventFd(fd))
  expect(set.wait(5000)).toBe(1)
  set.close()
}

function blk(driver: DriverModel, slot: VirtioSlot, type: number, sector: number, data: Uint8Array): Uint8Array {
  const status = driver.space(1)
  const buffer = type === OUT ? driver.buffer(data) : driver.space(data.length)
  driver.queues[0]!.add([driver.buffer(blkHeader(type, sector)), buffer, status])
  driver.queues[0]!.kick()
  awaitInterrupt(slot)
  driver.write(INTERRUPT_ACK, driver.read(INTERRUPT_STATUS))
  expect(driver.queues[0]!.takeUsed()).toHaveLength(1)
  expect(driver.bytes(status)[0]).toBe(0)
  return driver.bytes(buffer)
}

describe('a device worker', () => {
  it('serves two devices, pauses, saves, restores and ends', async () => {
    const memory = GuestMemory.create(32)
    const worker = new DeviceWorker(assetUrl('device.worker.cjs'))
    const path = disk('a')
    const device = new HostedDevice(worker, { kind: 'blk', disk: { path, format: 'raw' } })
    const rng = new HostedDevice(worker, { kind: 'rng' })
    const slots = [makeSlot(memory, 0, device.queues), makeSlot(memory, 1, rng.queues)]
    const [first, second] = await Promise.all([device.attach(slots[0]!), rng.attach(slots[1]!)])
    const driver = new DriverModel(memory, virtioMmioHandler(first))
    driver.start(1)
    blk(driver, slots[0]!, OUT, 7, new Uint8Array(512).fill(3))
    expect(readFileSync(path)[7 * 512]).toBe(3)
    const other = new DriverModel(memory, virtioMmioHandler(second), 0x80_0000)
    other.start(1)
    other.queues[0]!.add([other.space(64)])
    other.queues[0]!.kick()
    awaitInterrupt(slots[1]!)
    expect(other.queues[0]!.takeUsed()).toEqual([{ id: expect.any(Number), length: 64 }])

    // Paused, a doorbell waits.
    await device.pause()
    const saved = await device.save()
    const pending = driver.space(512)
    driver.queues[0]!.add([driver.buffer(blkHeader(IN, 7)), pending, driver.space(1)])
    driver.queues[0]!.ring()
    await rng.pause()
    expect(driver.queues[0]!.takeUsed()).toEqual([])
    await rng.resume()
    await device.resume()
    awaitInterrupt(slots[0]!)
    expect(driver.queues[0]!.takeUsed()).toHaveLength(1)
    expect(driver.bytes(pending)[0]).toBe(3)
    expect(await device.metrics()).toMatchObject({ reads: 1, writes: 1, activations: 1 })
    await device.close()

    // Restored into a worker of its own, at the queue positions of the save: it completes the same request again.
    const again = new HostedDevice(new DeviceWorker(assetUrl('device.worker.cjs')), device.description)
    const slot = makeSlot(memory, 2, 1)
    await again.attach(slot)
    driver.memory.slice(pending.address, 512).fill(0)
    await again.restore(saved)
    expect(driver.bytes(pending)[0]).toBe(0)
    await again.resume()
    // (The driver has seen this completion before, so it gets no interrupt for it.)
    await vi.waitFor(() => expect(driver.bytes(pending)[0]).toBe(3))
    await expect(again.restore(new Uint8Array([1, 2]))).rejects.toMatchObject({ code: 'BAD_STATE' })
    await expect(again.control({})).rejects.toMatchObject({ code: 'BAD_DESCRIPTION' })
    await again.close()
    await again.close()
    await rng.close()
    expect(worker.alive).toBe(false)
    ;[...slots, slot].forEach(closeSlot)
  })

  it("takes over a disk from the machine's own thread, which goes on where it was", async () => {
    const memory = GuestMemory.create(32)
    const loop = new MainLoop()
    const here = new LocalDevices(loop, { disk: ({ path }) => new RawFile(path) })
    const path = disk('moving')
    const device = new HostedDevice(here, { kind: 'blk', disk: { path, format: 'raw' } })
    const slot = makeSlot(memory, 0, device.queues)
    const driver = new DriverModel(memory, virtioMmioHandler(await device.attach(slot)))
    driver.start(1)
    blk(driver, slot, OUT, 3, new Uint8Array(512).fill(5))
    await device.pause()
    // Asked for while it stands still: the new thread has to find it.
    const pending = driver.space(512)
    driver.queues[0]!.add([driver.buffer(blkHeader(IN, 3)), pending, driver.space(1)])
    driver.queues[0]!.ring()
    expect(driver.queues[0]!.takeUsed()).toEqual([])
    await device.moveTo(new DeviceWorker(assetUrl('device.worker.cjs')), given => given)
    expect(here.alive).toBe(false)
    await device.resume()
    awaitInterrupt(slot)
    expect(driver.queues[0]!.takeUsed()).toHaveLength(1)
    expect(driver.bytes(pending)[0]).toBe(5)
    expect(await device.metrics()).toMatchObject({ reads: 1, writes: 1 })
    // Doorbells, resets and a new start reach it over there.
    driver.write(STATUS, 0)
    expect(driver.status).toBe(0)
    driver.start(1)
    blk(driver, slot, OUT, 4, new Uint8Array(512).fill(6))
    expect(readFileSync(path).subarray(3 * 512, 5 * 512)).toEqual(
      Buffer.concat([Buffer.alloc(512, 5), Buffer.alloc(512, 6)]),
    )
    await device.close()
    loop.close()
    closeSlot(slot)
  })

  it('hears of a device that keeps its thread waiting, once', () => {
    const told = vi.fn()
    const load = new DeviceLoad(told)
    const takes = (ms: number) =>
      ({
        notified: () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms) === 'ok',
      }) as unknown as VirtioDevice
    load.measure(takes(60), 0)
    for (let i = 0; i < 1000; i++) load.measure(takes(0), 0)
    expect(told).not.toHaveBeenCalled()
    load.measure(takes(60), 0)
    load.measure(takes(60), 0)
    expect(told).toHaveBeenCalledTimes(1)
  })

  it('resets from a vCPU thread only when the device has let go of its queues', async () => {
    const memory = GuestMemory.create(32)
    const device = new HostedDevice(new DeviceWorker(assetUrl('device.worker.cjs')), {
      kind: 'blk',
      disk: { path: disk('b'), format: 'raw' },
    })
    const slot = makeSlot(memory, 0, 1)
    const driver = new DriverModel(memory, virtioMmioHandler(await device.attach(slot)))
    for (let round = 0; round < 50; round++) {
      driver.start(1)
      for (let i = 0; i < 40; i++) {
        driver.queues[0]!.add([driver.buffer(blkHeader(IN, i)), driver.space(512), driver.space(1)])
      }
      driver.queues[0]!.ring()
      driver.write(0x70, 0)
      expect(driver.status).toBe(0)
      // Nothing is written to guest memory after the reset.
      memory.slice(0x10_0000, 0x10_0000).fill(0x77)
      expect(memory.slice(0x10_0000, 0x10_0000).every(byte => byte === 0x77)).toBe(true)
    }
    expect(driver.status & STATUS_NEEDS_RESET).toBe(0)
    await device.close()
    closeSlot(slot)
  })

  it('says what cannot be attached, and goes on', async () => {
    const memory = GuestMemory.create(32)
    const worker = new DeviceWorker(assetUrl('device.worker.cjs'))
    const bad = new HostedDevice(worker, { kind: 'blk', disk: { path: join(folder, 'absent'), format: 'raw' } })
    const good = new HostedDevice(worker, { kind: 'rng' })
    const slots = [makeSlot(memory, 0, 1), makeSlot(memory, 1, 1)]
    await expect(bad.attach(slots[0]!)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await good.attach(slots[1]!)
    await bad.close()
    await good.close()
    slots.forEach(closeSlot)
  })

  it('leaves no vCPU waiting when it crashes: the device needs a reset that never comes', async () => {
    const memory = GuestMemory.create(32)
    const crash =
      "import { workerData } from 'node:worker_threads'; setTimeout(() => { throw new Error('crashed') }, 50)"
    const device = new HostedDevice(new DeviceWorker(new URL(`data:text/javascript,${encodeURIComponent(crash)}`)), {
      kind: 'rng',
    })
    const slot = makeSlot(memory, 0, 1)
    await expect(device.attach(slot)).rejects.toMatchObject({ code: 'WORKER_FAILED', message: /crashed/ })
    const driver = new DriverModel(memory, virtioMmioHandler({ slot, detail: { controlFd: slot.controlFd } }))
    driver.write(STATUS, 0)
    expect(driver.status).toBe(STATUS_NEEDS_RESET)
    await device.close()
    closeSlot(slot)
  })
})
