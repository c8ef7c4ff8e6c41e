/**
 * Writes numbered blocks through a device worker until it is killed, saying after each flush how far it is:
 * `kill-writer.ts PATH FORMAT FIRST`. Block n holds, in every 32-bit word, the number of the last write to it.
 */
import { writeSync } from 'node:fs'
import { assetUrl } from '../../src/host/assets.ts'
import { drainEventFd } from '../../src/host/event-fd.ts'
import { POLLIN, PollSet } from '../../src/host/poll.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import { virtioMmioHandler } from '../../src/virtio/mmio/handler.ts'
import { makeSlot } from '../../src/virtio/testing/bench.ts'
import { blkHeader, FLUSH, OUT } from '../../src/virtio/testing/blk-driver.ts'
import { DriverModel, type Segment } from '../../src/virtio/testing/driver.ts'
import { DeviceWorker } from '../../src/virtio/worker/device-worker.ts'
import { HostedDevice } from '../../src/virtio/worker/hosted-device.ts'
import { BLOCK, blockOf } from './kill-pattern.ts'

const [path, format, first] = process.argv.slice(2)
const memory = GuestMemory.create(64)
const device = new HostedDevice(new DeviceWorker(assetUrl('device.worker.cjs')), {
  kind: 'blk',
  disk: { path: path!, format: format as 'raw' | 'qcow2' },
})
const slot = makeSlot(memory, 0, 1)
const driver = new DriverModel(memory, virtioMmioHandler(await device.attach(slot)))
driver.start(1)
const { fd } = slot.interrupt as { fd: number }
const poll = new PollSet()
poll.add(fd, POLLIN, () => void drainEventFd(fd))
const header = driver.space(16)
const data = driver.space(BLOCK)
const status = driver.space(1)

function request(type: number, sector: number, ...buffers: Segment[]): void {
  memory.write(header.address, blkHeader(type, sector))
  driver.queues[0]!.add([{ ...header, write: false }, ...buffers, status])
  driver.queues[0]!.kick()
  while (driver.queues[0]!.takeUsed().length === 0) poll.wait(1000)
  if (memory.readU8(status.address) !== 0) throw new Error(`request ${type} at ${sector} failed`)
}

for (let number = Number(first); ; number++) {
  const words = new Uint32Array(BLOCK / 4).fill(number)
  memory.write(data.address, new Uint8Array(words.buffer))
  request(OUT, (blockOf(number) * BLOCK) / 512, { ...data, write: false })
  if (number % 5 !== 0) continue
  request(FLUSH, 0)
  writeSync(1, `${number}\n`)
}
