/** Snapshots at the command line, on a real guest: one box, saved, compared, put back, branched, frozen, sent through a pipe. */
import { execFile, spawn } from 'node:child_process'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { assetPath } from '../../src/host/assets.ts'

const run = promisify(execFile)
const CLI = assetPath('cli.js')
const BOOT_MS = 180_000
const box = `cli-${process.pid}`
const made = [box]

async function vitrine(...args: string[]): Promise<string> {
  const { stdout } = await run(process.execPath, [CLI, ...args], { timeout: BOOT_MS })
  return stdout
}
const inBox = (name: string, script: string): Promise<string> => vitrine('exec', name, '--', 'sh', '-c', script)
const newBox = (suffix: string): string => {
  made.push(`${box}-${suffix}`)
  return `${box}-${suffix}`
}

beforeAll(async () => {
  await vitrine('create', '--name', box, '--memory', '128')
  // A process that counts in memory, and hands its count to whoever asks through a pipe.
  await inBox(
    box,
    'mkfifo /tmp/ask /tmp/answer; (n=0; while read line < /tmp/ask; do n=$((n+1)); echo $n > /tmp/answer; done) >/dev/null 2>&1 & echo first > /root/file',
  )
}, BOOT_MS)

afterAll(async () => {
  await vitrine('rm', '--force', ...made).catch(() => {})
  await vitrine('snapshot', 'rm', `${box}-sent`).catch(() => {})
}, BOOT_MS)

const count = async (name: string): Promise<number> => Number(await inBox(name, 'echo > /tmp/ask; cat /tmp/answer'))

describe('a box at the command line', () => {
  it('is saved and compared', { timeout: BOOT_MS }, async () => {
    expect(await count(box)).toBe(1)
    const first = JSON.parse(await vitrine('snapshot', 'create', '--json', box, 'first')) as Record<string, unknown>
    expect(first).toMatchObject({ name: 'first', memory: true, parent: null })
    expect([await count(box), await count(box)]).toEqual([2, 3])
    await inBox(box, 'rm /root/file; mkdir /srv/new; echo x > /srv/new/x; chmod 700 /home')
    expect(await vitrine('snapshot', 'create', box, 'second')).toBe('second\n')
    const changes = (await vitrine('snapshot', 'diff', `${box}@first`, `${box}@second`)).trim().split('\n')
    expect(changes).toEqual(['C /home  (mode)', 'D /root/file', 'A /srv/new', 'A /srv/new/x'])
    const [root] = (JSON.parse(await vitrine('snapshot', 'tree', '--json', box)) as { snapshots: unknown[] }[])[0]!
      .snapshots as { info: { name: string }; children: { info: { name: string } }[] }[]
    expect([root!.info.name, root!.children.map(({ info }) => info.name)]).toEqual(['first', ['second']])
    await expect(vitrine('snapshot', 'create', box, 'first')).rejects.toThrow(/named 'first' already/)
    expect(await vitrine('snapshot', 'verify', `${box}@first`, `${box}@second`)).toMatch(/whole\n.*whole\n$/)
  })

  it('is put back, processes and files', { timeout: BOOT_MS }, async () => {
    await vitrine('rollback', box, 'first')
    expect([await inBox(box, 'cat /root/file; ls /srv'), await count(box)]).toEqual(['first\n', 2])
  })

  it('is branched, each with a life of its own', { timeout: BOOT_MS }, async () => {
    const [a, b] = [newBox('a'), newBox('b')]
    expect(await vitrine('fork', box, a, b)).toBe(`${a}\n${b}\n`)
    expect([await count(a), await count(a), await count(b), await count(box)]).toEqual([3, 4, 3, 3])
    const uuids = await Promise.all([a, b, box].map(name => inBox(name, 'cat /proc/sys/kernel/random/uuid')))
    expect(new Set(uuids).size).toBe(3)
    expect(await inBox(a, 'hostname')).toBe(`${a}\n`)
  })

  it('is frozen to disk and wakes up when it is used', { timeout: BOOT_MS }, async () => {
    const [, a] = made as [string, string]
    await vitrine('pause', '--release', a)
    expect(await vitrine('ps')).toMatch(new RegExp(`${a} .*paused`))
    expect(await count(a)).toBe(5)
  })

  it('goes through a pipe, and on from there', { timeout: BOOT_MS }, async () => {
    const out = spawn(process.execPath, [CLI, 'export', `${box}@second`], { stdio: ['ignore', 'pipe', 'inherit'] })
    const into = spawn(process.execPath, [CLI, 'import', '--name', `${box}-sent`], {
      stdio: [out.stdout, 'ignore', 'inherit'],
    })
    const ends = [out, into].map(child => new Promise<number | null>(resolve => child.once('exit', resolve)))
    expect(await Promise.all(ends)).toEqual([0, 0])
    const restored = newBox('r')
    expect(await vitrine('restore', `${box}-sent`, '--name', restored)).toBe(`${restored}\n`)
    expect([await inBox(restored, 'cat /srv/new/x'), await count(restored)]).toEqual(['x\n', 4])
  })

  it('keeps what children need when a snapshot is removed', { timeout: BOOT_MS }, async () => {
    await vitrine('snapshot', 'rm', `${box}@first`)
    expect(await vitrine('snapshot', 'verify', `${box}@second`)).toMatch(/whole\n$/)
    await vitrine('rollback', box, 'second')
    expect([await inBox(box, 'cat /srv/new/x'), await count(box)]).toEqual(['x\n', 4])
  })
})
