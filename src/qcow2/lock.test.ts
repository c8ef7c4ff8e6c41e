/** Two writers keep each other out, across tools and within this process. */
import { type ChildProcess, spawn } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { createDisk } from './create.ts'
import { openDisk } from './open.ts'
import { qemuImg, qemuIo, qemuMissing } from './testing/qemu.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-disk-lock-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

/** A qemu-io that holds the image open until its input ends. */
async function holdWithQemu(path: string, readOnly: boolean): Promise<ChildProcess> {
  const child = spawn('qemu-io', ['-f', 'qcow2', ...(readOnly ? ['-r'] : []), path], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const ready = new Promise<void>((resolve, reject) => {
    let text = ''
    child.stdout!.on('data', (chunk: Buffer) => {
      text += chunk
      if (/read .* bytes/.test(text)) resolve()
    })
    child.on('error', reject)
    child.on('exit', () => reject(new Error(`qemu-io ended: ${text}`)))
  })
  child.stdin!.write('read 0 512\n')
  await ready
  return child
}

async function letGo(child: ChildProcess): Promise<void> {
  const gone = new Promise(resolve => child.on('exit', resolve))
  child.stdin!.end()
  await gone
}

describe.skipIf(qemuMissing)('image locks', () => {
  const path = join(folder, 'disk.qcow2')
  createDisk(path, { format: 'qcow2', size: 1024 * 1024 })

  it('keep qemu-img and qemu-io out while we write, and let them in afterwards', () => {
    const image = openDisk(path, { format: 'qcow2' })
    expect(qemuIo('-f', 'qcow2', '-c', 'write 0 512', path).stderr).toMatch(/lock/i)
    expect(qemuImg('info', path).stderr).toMatch(/lock/i)
    expect(qemuImg('check', path).stderr).toMatch(/lock/i)
    image.close()
    expect(qemuIo('-f', 'qcow2', '-c', 'write 0 512', path).stdout).toMatch(/wrote/)
    expect(qemuImg('check', path).status).toBe(0)
  })

  it('share a disk that we only read with readers, not with writers', () => {
    const image = openDisk(path, { format: 'qcow2', readOnly: true })
    expect(qemuImg('info', path).status).toBe(0)
    expect(qemuIo('-r', '-f', 'qcow2', '-c', 'read 0 512', path).stdout).toMatch(/read 512/)
    expect(qemuIo('-f', 'qcow2', '-c', 'write 0 512', path).stderr).toMatch(/lock/i)
    image.close()
  })

  it('keep us out while QEMU writes', async () => {
    const child = await holdWithQemu(path, false)
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(expect.objectContaining({ code: 'LOCKED' }))
    expect(() => openDisk(path, { format: 'qcow2', readOnly: true })).toThrow(
      expect.objectContaining({ code: 'LOCKED' }),
    )
    openDisk(path, { format: 'qcow2', readOnly: true, lock: false }).close()
    await letGo(child)
    openDisk(path, { format: 'qcow2' }).close()
  })

  it('let us read, not write, while QEMU reads', async () => {
    const child = await holdWithQemu(path, true)
    openDisk(path, { format: 'qcow2', readOnly: true }).close()
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(expect.objectContaining({ code: 'LOCKED' }))
    await letGo(child)
  })

  it('hold within one process, for raw disks, and for a base under its overlays', () => {
    const first = openDisk(path, { format: 'qcow2' })
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(/in use by another process/)
    expect(() => createDisk(path, { format: 'qcow2', size: 512, overwrite: true })).toThrow(/in use/)
    expect(() => openDisk(path, { format: 'qcow2', lock: false })).toThrow(/read-only/)
    first.close()
    const raw = join(folder, 'disk.raw')
    createDisk(raw, { format: 'raw', size: 4096 })
    const writer = openDisk(raw, { format: 'raw' })
    expect(() => openDisk(raw, { format: 'raw', readOnly: true })).toThrow(/being written/)
    writer.close()
    const overlays = ['a', 'b'].map(name => {
      const overlay = join(folder, name)
      createDisk(overlay, { format: 'qcow2', size: 1024 * 1024, backing: { file: path, format: 'qcow2' } })
      return openDisk(overlay, { format: 'qcow2' })
    })
    expect(() => openDisk(path, { format: 'qcow2' })).toThrow(expect.objectContaining({ code: 'LOCKED' }))
    for (const overlay of overlays) overlay.close()
    openDisk(path, { format: 'qcow2' }).close()
  })
})
