import { expect, it } from 'vitest'
import { formatQcow2 } from './create.ts'
import { Qcow2Image } from './qcow2-image.ts'
import { RawImage } from './raw-image.ts'
import { readDisk, writeDisk } from './testing/disk-io.ts'
import { MemoryStorage } from './testing/memory-storage.ts'

const CLUSTER = 512

it.each([2, 3] as const)('gives up what lies behind a short backing file (version %i)', version => {
  const backing = new RawImage(new MemoryStorage(new Uint8Array(3 * CLUSTER).fill(1)), 'backing', { readOnly: true })
  const storage = new MemoryStorage()
  formatQcow2(storage, 'memory', { size: 8 * CLUSTER, clusterSize: CLUSTER, version })
  const image = new Qcow2Image(storage, 'memory', { backing })
  writeDisk(image, 0, new Uint8Array(8 * CLUSTER).fill(7))
  // One run of clusters that are all alike, over the backing file's end.
  image.discard(0, 8 * CLUSTER)
  const after = readDisk(image, 0, 8 * CLUSTER)
  // Version 2 has no way to hide the backing file, so what is over it stays.
  expect(after.subarray(0, 3 * CLUSTER).every(byte => byte === (version === 2 ? 7 : 0))).toBe(true)
  expect(after.subarray(3 * CLUSTER).every(byte => byte === 0)).toBe(true)
  image.close()
})
