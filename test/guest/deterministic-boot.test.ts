/**
 * Debian's kernel on a deterministic software CPU, twice: from another process, at another time and while the host does other things,
 * it retires the same instructions and ends with the same registers and the same memory.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { expect, it } from 'vitest'
import { assetPath } from '../../src/host/assets.ts'
import { findKernel } from '../../src/image/kernel/find.ts'

interface Ended {
  readonly reason: string
  readonly hash: string
  readonly vcpus: readonly { readonly instructions: number; readonly interrupts: number }[]
}

const WORK =
  'date -u +%s; cat /proc/sys/kernel/random/uuid; head -c 100000 /dev/urandom | sha256sum; sleep 3; cat /proc/interrupts /proc/uptime'

async function boot(work: string): Promise<{ text: string; ended: Ended }> {
  const append = `quiet vitrine.exec="${work}"`
  const child = spawn(
    process.execPath,
    [assetPath('cli.js'), 'boot', '--deterministic', '--memory', '128M', '--json', '--append', append],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  )
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (data: string) => {
    output += data
  })
  await once(child, 'close')
  const lines = output.trimEnd().split('\n')
  return { text: lines.slice(0, -1).join('\n'), ended: JSON.parse(lines.at(-1)!) as Ended }
}

it('two runs are one run', { timeout: 400_000 }, async () => {
  await findKernel()
  // Beside each other, so that each meets the host in another mood.
  const [first, second] = await Promise.all([boot(WORK), boot(WORK)])
  expect(first.ended).toMatchObject({ reason: 'power-off', accelerator: 'soft' })
  expect(first.ended.hash).toMatch(/^[0-9a-f]{64}$/)
  expect(first.text).toMatch(/^1600000\d{3}\r?$/m)
  expect(second.text).toBe(first.text)
  const counted = ({ ended }: typeof first) =>
    ended.vcpus.map(({ instructions, interrupts }) => [instructions, interrupts])
  expect(counted(second)).toEqual(counted(first))
  expect(second.ended.hash).toBe(first.ended.hash)
  // The hash can tell: one letter more in the command line.
  const other = await boot(`${WORK} `)
  expect(other.ended.hash).not.toBe(first.ended.hash)
})
