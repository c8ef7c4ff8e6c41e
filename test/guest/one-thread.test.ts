/** Boxes whose VMM is one thread, until their disk keeps them waiting; and with threads from the start. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { Box } from '../../src/box/box.ts'
import { Runtime } from '../../src/box/runtime.ts'
import { THREADS_VARIABLE } from '../../src/box/vmm/one-thread.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-thread-'))
const runtime = new Runtime({ home })
afterAll(() => rmSync(home, { recursive: true }))

describe('a box on the software CPU', () => {
  it('keeps its disk busy, which may then get a thread, and nothing is lost', async () => {
    await using box = await Box.create({ memoryMib: 256, accel: 'soft', network: 'none' }, runtime)
    const write = 'dd if=/dev/urandom of=/root/data bs=1M count=64 2>/dev/null; sync; md5sum /root/data'
    const sum = (await box.sh(write)).stdout
    const { disk } = await box.metrics()
    expect(disk.writtenBytes).toBeGreaterThan(64 * 2 ** 20)
    // It reads what it wrote, and is saved and put back like any other, on whatever thread its disk is.
    expect((await box.sh('echo 3 > /proc/sys/vm/drop_caches; md5sum /root/data')).stdout).toBe(sum)
    await box.snapshot('moved')
    await box.sh('rm /root/data; sync')
    await box.rollback('moved')
    expect((await box.sh('md5sum /root/data')).stdout).toBe(sum)
    await box.stop()
    expect((await box.sh('md5sum /root/data')).stdout).toBe(sum)
  })

  it('has threads from the start where that is asked for', async () => {
    process.env[THREADS_VARIABLE] = 'many'
    try {
      await using box = await Box.create({ memoryMib: 256, accel: 'soft' }, runtime)
      expect((await box.sh('echo $((6 * 7))')).stdout).toBe('42\n')
      const [fork] = await box.fork()
      expect((await fork!.sh('hostname')).stdout.trim()).toBe(fork!.name)
      await fork!.remove({ force: true })
    } finally {
      delete process.env[THREADS_VARIABLE]
    }
  })
})
