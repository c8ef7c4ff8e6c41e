/** A guest whose other CPU changes descriptors while the device, in another thread, reads them. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { assetUrl } from '../host/assets.ts'
import { GuestMemory } from '../memory/guest-memory.ts'
import { STATICS_BASE, STATICS_END } from '../memory/layout.ts'
import { virtioMmioHandler } from './mmio/handler.ts'
import { STATUS_NEEDS_RESET } from './mmio/registers.ts'
import { closeSlot, makeSlot } from './testing/bench.ts'
import { blkHeader, IN } from './testing/blk-driver.ts'
import { DriverModel, NEXT, WRITE } from './testing/driver.ts'
import { DeviceWorker } from './worker/device-worker.ts'
import { HostedDevice } from './worker/hosted-device.ts'

const RAM = 32 * 2 ** 20

it('reads every descriptor once: what it checked is what it uses', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-race-'))
  const path = join(folder, 'disk')
  writeFileSync(path, new Uint8Array(1 << 20).fill(0x99))
  const memory = GuestMemory.create(32)
  const device = new HostedDevice(new DeviceWorker(assetUrl('device.worker.cjs')), {
    kind: 'blk',
    disk: { path, format: 'raw' },
  })
  const slot = makeSlot(memory, 0, 1)
  const driver = new DriverModel(memory, virtioMmioHandler(await device.attach(slot)))
  const statics = memory.bytes.subarray(STATICS_BASE, STATICS_END)
  const sanctuary = memory.slice(0x8_0000, 0x1_0000).fill(0x5a)
  let completed = 0
  let faults = 0
  const end = Date.now() + 1500
  while (Date.now() < end) {
    driver.start(1, 64)
    const queue = driver.queues[0]!
    const header = driver.buffer(blkHeader(IN, 0))
    const data = driver.space(65_536)
    const status = driver.space(1)
    for (let i = 0; i < 40 && (driver.status & STATUS_NEEDS_RESET) === 0; i++) {
      const head = queue.add([header, data, status])
      const middle = memory.readU16(queue.desc + 16 * head + 14)
      queue.ring()
      for (let flip = 0; flip < 400; flip++) {
        // Good and bad lengths, addresses and links in turn; the address never leads to memory that is checked below.
        memory.writeU32(queue.desc + 16 * middle + 8, flip & 1 ? 0xffff_fe00 : 512)
        memory.writeU64(queue.desc + 16 * middle, BigInt(flip & 2 ? RAM - 256 : data.address))
        memory.writeU16(queue.desc + 16 * middle + 12, flip & 4 ? WRITE : WRITE | NEXT)
      }
      queue.writeDescriptor(middle, data.address, 512, WRITE | NEXT, memory.readU16(queue.desc + 16 * middle + 14))
      completed += queue.takeUsed().length
      if (queue.freeDescriptors < 3) break
    }
    if (driver.status & STATUS_NEEDS_RESET) faults++
  }
  // Both happened, and neither did harm.
  expect(completed).toBeGreaterThan(0)
  expect(faults).toBeGreaterThan(0)
  expect(statics.every(byte => byte === 0)).toBe(true)
  expect(sanctuary.every(byte => byte === 0x5a)).toBe(true)
  driver.write(0x70, 0)
  expect(driver.status).toBe(0)
  expect((await device.metrics()).guestFaults).toBeGreaterThan(0)
  await device.close()
  closeSlot(slot)
  rmSync(folder, { recursive: true })
})
