/** A full disk: the write fails, the image stays consistent, and goes on when there is space again. */
import { constants } from 'node:os'
import { describe, expect, it } from 'vitest'
import { HostError } from '../host/errors.ts'
import { checkStorage } from './check.ts'
import { formatQcow2 } from './create.ts'
import { Qcow2Image } from './qcow2-image.ts'
import { RawImage } from './raw-image.ts'
import { rewriteHeader } from './rewrite-header.ts'
import { readDisk, writeDisk } from './testing/disk-io.ts'
import { MemoryStorage } from './testing/memory-storage.ts'
import { Random } from './testing/random.ts'
import { contentsOf, expectSame, ModelledDisk } from './testing/random-disk.ts'

describe('a full disk', () => {
  for (let seed = 1; seed <= 8; seed++) {
    it(`fails single operations and nothing else (seed ${seed})`, () => {
      const random = new Random(seed)
      const storage = new MemoryStorage()
      const clusterSize = random.pick([512, 1024, 4096])
      formatQcow2(storage, 'memory', { size: clusterSize * 200, clusterSize, refcountBits: random.pick([8, 16, 64]) })
      const image = new Qcow2Image(storage, 'memory', { l2CacheBytes: 4096, refcountCacheBytes: 4096 })
      const disk = new ModelledDisk(image, new Uint8Array(image.sizeBytes), random)
      let full = false
      let limit = storage.size()
      storage.onChange = change => {
        const end =
          change.kind === 'write'
            ? change.position + change.bytes.length
            : change.kind === 'zero'
              ? change.position + change.length
              : 0
        if (full && end > limit) throw new HostError('pwritev', constants.errno.ENOSPC)
      }
      let failures = 0
      for (let i = 0; i < 150; i++) {
        if (i % 15 === 0) {
          full = !full
          limit = storage.size() + random.below(3) * clusterSize
        }
        try {
          disk.step()
        } catch (error) {
          if (!(error instanceof HostError)) throw error
          expect(error.code).toBe('ENOSPC')
          failures++
          // A write that failed may have been done in part: the model learns what is there now.
          disk.model.set(contentsOf(image))
        }
      }
      expect(failures).toBeGreaterThan(0)
      full = false
      image.flush()
      disk.verify()
      image.close()
      const report = checkStorage(storage, 'memory')
      expect(report.corruptions, report.messages.join('\n')).toBe(0)
      expect(report.leaks, report.messages.join('\n')).toBe(0)
      const again = new Qcow2Image(storage, 'memory', { readOnly: true })
      expectSame(contentsOf(again), disk.model, 'reopened')
    })
  }

  it('calls nothing durable after a failed flush', () => {
    const storage = new MemoryStorage()
    formatQcow2(storage, 'memory', { size: 65536, clusterSize: 512 })
    const image = new Qcow2Image(storage, 'memory')
    storage.onChange = change => {
      if (change.kind === 'flush') throw new HostError('fdatasync', constants.errno.EIO)
    }
    image.writeZeroes(0, 512, true)
    expect(() => image.flush()).toThrow('EIO')
    storage.onChange = undefined
    expect(() => image.flush()).toThrow('EIO')
  })

  it('calls nothing durable after a flush that failed while new tables were written', () => {
    for (const [what, bits, change] of [
      ['a refcount block', 64, (image: Qcow2Image) => writeDisk(image, 0, new Uint8Array(512 * 100).fill(7))],
      ['a refcount table', 64, (image: Qcow2Image) => writeDisk(image, 0, new Uint8Array(512 * 1900).fill(7))],
      ['a longer L1 table', 16, (image: Qcow2Image) => image.resize(512 * 200_000)],
      [
        'another header',
        16,
        (image: Qcow2Image) => rewriteHeader(image.metadata, { backingFile: 'b', backingFormat: 'raw' }),
      ],
    ] as const) {
      // Each flush of the operation and of the one that follows it, in turn.
      for (let failing = 0; failing < 8; failing++) {
        const storage = new MemoryStorage()
        formatQcow2(storage, 'memory', { size: 512 * 2000, clusterSize: 512, refcountBits: bits })
        const image = new Qcow2Image(storage, 'memory')
        let flushes = 0
        storage.onChange = change => {
          if (change.kind === 'flush' && flushes++ === failing) throw new HostError('fdatasync', constants.errno.EIO)
        }
        try {
          change(image)
          image.flush()
        } catch (error) {
          expect(error).toBeInstanceOf(HostError)
        }
        if (flushes <= failing) break
        for (let i = 0; i < 2; i++) expect(() => image.flush(), `${what}, flush ${failing}`).toThrow('EIO')
        expect(() => image.close()).toThrow('EIO')
      }
    }
    const storage = new MemoryStorage(new Uint8Array(4096))
    const raw = new RawImage(storage, 'memory')
    storage.onChange = change => {
      if (change.kind === 'flush') throw new HostError('fdatasync', constants.errno.EIO)
    }
    expect(() => raw.flush()).toThrow('EIO')
    storage.onChange = undefined
    expect(() => raw.flush()).toThrow('EIO')
  })

  it('uses the room of what was discarded, before any flush', () => {
    const storage = new MemoryStorage()
    formatQcow2(storage, 'memory', { size: 512 * 200, clusterSize: 512 })
    const image = new Qcow2Image(storage, 'memory')
    writeDisk(image, 0, new Uint8Array(512 * 60).fill(1))
    image.flush()
    const limit = storage.size()
    storage.onChange = change => {
      if (change.kind === 'write' && change.position + change.bytes.length > limit) {
        throw new HostError('pwritev', constants.errno.ENOSPC)
      }
    }
    expect(() => writeDisk(image, 512 * 60, new Uint8Array(512))).toThrow('ENOSPC')
    image.discard(0, 512 * 60)
    writeDisk(image, 512 * 60, new Uint8Array(512 * 4).fill(2))
    writeDisk(image, 512 * 128, new Uint8Array(512 * 40).fill(3))
    image.close()
    expect(checkStorage(storage, 'memory')).toMatchObject({ corruptions: 0, leaks: 0 })
    const again = new Qcow2Image(storage, 'memory', { readOnly: true })
    expect(readDisk(again, 512 * 60, 512)[0]).toBe(2)
    expect(readDisk(again, 512 * 167, 512)[0]).toBe(3)
  })
})
