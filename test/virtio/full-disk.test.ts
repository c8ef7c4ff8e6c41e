/**
 * A host that runs out of space below a disk: the guest gets I/O errors for the requests that need more, and no others;
 * the image stays sound; and writing goes on when there is space again. A real file system is filled, through the device.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { createDisk } from '../../src/qcow2/create.ts'
import { openDisk } from '../../src/qcow2/open.ts'
import { BlkDevice } from '../../src/virtio/blk/device.ts'
import { DeviceBench } from '../../src/virtio/testing/bench.ts'
import { FLUSH, IN, OUT, request } from '../../src/virtio/testing/blk-driver.ts'
import { mountSmallFs, smallFsMissing, unmountSmallFs } from './small-fs.ts'

const MIB = 2 ** 20
const CHUNK = 64 * 1024
const OK = 0
const IO_ERROR = 1

describe.skipIf(smallFsMissing)('a host without space', () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-full-'))
  const small = join(folder, 'small')
  const ballast = join(small, 'ballast')
  let bench: DeviceBench<BlkDevice>
  beforeAll(() => mountSmallFs(small, 8))
  afterAll(() => {
    unmountSmallFs(small)
    rmSync(folder, { recursive: true })
  })
  beforeEach(() => writeFileSync(ballast, new Uint8Array(4 * MIB)))
  afterEach(() => rmSync(ballast, { force: true }))

  const write = (chunk: number, value: number): number =>
    request(bench, OUT, (chunk * CHUNK) / 512, bench.driver.buffer(new Uint8Array(CHUNK).fill(value)))
  const read = (chunk: number): number => {
    const target = bench.driver.space(CHUNK)
    expect(request(bench, IN, (chunk * CHUNK) / 512, target)).toBe(OK)
    const bytes = bench.driver.bytes(target)
    expect(bytes.every(byte => byte === bytes[0])).toBe(true)
    return bytes[0]!
  }

  for (const format of ['qcow2', 'raw'] as const) {
    it(`fails only what needs more, and goes on (${format})`, () => {
      const path = join(small, `disk.${format}`)
      createDisk(path, { format, size: 16 * MIB })
      bench = new DeviceBench(new BlkDevice(openDisk(path, { format })), { sizeMib: 64 })
      bench.driver.start(1)
      const good = new Map<number, number>()
      let failed = 0
      for (let chunk = 0; chunk < 100 && failed < 5; chunk++) {
        const status = write(chunk, 1 + chunk)
        if (status === OK) good.set(chunk, 1 + chunk)
        else {
          expect(status).toBe(IO_ERROR)
          failed++
        }
      }
      expect(failed).toBe(5)
      expect(good.size).toBeGreaterThan(30)
      // What has its space can be written and read as ever.
      expect(write(3, 200)).toBe(OK)
      good.set(3, 200)
      for (const [chunk, value] of good) expect(read(chunk)).toBe(value)
      // A flush may need a little for metadata; it fails or not, but what it says is true afterwards.
      const flushed = request(bench, FLUSH, 0)
      expect([OK, IO_ERROR]).toContain(flushed)

      rmSync(ballast)
      for (let chunk = 150; chunk < 170; chunk++) {
        expect(write(chunk, chunk)).toBe(OK)
        good.set(chunk, chunk)
      }
      expect(request(bench, FLUSH, 0)).toBe(OK)
      for (const [chunk, value] of good) expect(read(chunk)).toBe(value)
      expect(bench.metrics).toMatchObject({ guestFaults: 0 })
      for (const error of bench.errors) expect(error).toMatchObject({ code: 'ENOSPC' })
      bench.close()

      const check = format === 'qcow2' ? execFileSync('qemu-img', ['check', path], { encoding: 'utf8' }) : ''
      if (format === 'qcow2') expect(check).toContain('No errors were found')
      const flat = join(folder, 'flat')
      execFileSync('qemu-img', ['convert', '-f', format, '-O', 'raw', path, flat])
      const bytes = readFileSync(flat)
      for (const [chunk, value] of good) {
        expect(bytes.subarray(chunk * CHUNK, (chunk + 1) * CHUNK).every(byte => byte === value)).toBe(true)
      }
      rmSync(path)
    })
  }
})
