import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { Home } from './home.ts'
import { startVmm } from './start.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-start-'))
afterAll(() => rmSync(home, { recursive: true }))

describe('starting a VMM', () => {
  it('says what is wrong with a log that cannot be written, as on a full disk', async () => {
    const folder = new Home(home).box('0123456789ab')
    mkdirSync(folder.vmmLog, { recursive: true })
    const plan = Promise.resolve({ kernel: '', initrd: '', accel: 'soft', kernelArguments: [] } as const)
    await expect(startVmm(folder, plan)).rejects.toMatchObject({
      code: 'HOME',
      message: expect.stringMatching(/log: EISDIR.*vmm\.log/),
    })
  })

  it('says so, too, when there is no such folder', async () => {
    const folder = new Home(join(home, 'gone')).box('0123456789ab')
    const plan = Promise.resolve({ kernel: '', initrd: '', accel: 'soft', kernelArguments: [] } as const)
    await expect(startVmm(folder, plan)).rejects.toMatchObject({
      code: 'HOME',
      message: expect.stringContaining('ENOENT'),
    })
  })
})
