/** What cannot be, asked of boxes: each a typed error that names the thing and says what to do, and nothing left behind. */
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { has } from '../../test/image/oracles.ts'
import { ProcessLock } from '../host/process-lock.ts'
import { Box } from './box.ts'
import type { BoxOptions } from './options.ts'
import { Runtime } from './runtime.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-bad-'))
const runtime = new Runtime({ home, defaults: { diskGib: 1 } })
afterAll(() => rmSync(home, { recursive: true }))

const fails = async (work: Promise<unknown>, code: string, message: RegExp): Promise<void> => {
  const error = await work.then(
    () => undefined,
    (failure: unknown) => failure,
  )
  expect(error).toMatchObject({ code, message: expect.stringMatching(message) })
}
const create = (options: BoxOptions): Promise<Box> => Box.create(options, runtime)

describe('images', () => {
  const registry = createServer((request, response) => {
    if (request.url === '/v2/') response.end('{}')
    else response.writeHead(404, { 'content-type': 'application/json' }).end('{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
  })
  let port = 0
  beforeAll(async () => {
    await new Promise<void>(resolve => registry.listen(0, '127.0.0.1', resolve))
    port = (registry.address() as { port: number }).port
  })
  afterAll(() => {
    registry.close()
    registry.closeAllConnections()
  })

  it('that are unknown, cannot be reached, or are no image', async () => {
    await fails(create({ name: 'a', image: `127.0.0.1:${port}/no/such:1` }), 'NOT_FOUND', /no\/such.*:/)
    await fails(create({ name: 'a', image: '127.0.0.1:1/a' }), 'NETWORK', /127\.0\.0\.1:1/)
    await fails(create({ name: 'a', image: 'Not An Image' }), 'BAD_REFERENCE', /Not An Image/)
    await fails(create({ name: 'a', image: './no-such-folder' }), 'NOT_FOUND', /no-such-folder/)
    const file = join(home, 'nonsense.tar')
    writeFileSync(file, 'this is no archive'.repeat(100))
    await fails(create({ name: 'a', image: file }), 'BAD_TAR', /nonsense\.tar/)
    // Neither the name nor a folder stays taken.
    expect(readdirSync(join(home, 'names'))).toEqual([])
    expect(readdirSync(join(home, 'boxes'))).toEqual([])
  })
})

describe('options', () => {
  it.each<[BoxOptions, RegExp]>([
    [{ name: '../up' }, /'\.\.\/up'.*use 1 to 63 letters/],
    [{ name: '' }, /use 1 to 63/],
    [{ cpus: 0 }, /from 1 to/],
    [{ cpus: 1.5 }, /whole number/],
    [{ memoryMib: 1 }, /memory cannot be 1 MiB/],
    [{ memoryMib: 1e9 }, /memory cannot be/],
    [{ diskGib: 0 }, /disk cannot be 0 GiB/],
    [{ env: { 'A=B': 'c' } }, /environment variable/],
    [{ workdir: 'relative' }, /absolute path/],
    [{ ports: [{ host: 80, guest: 0 }] }, /guest port/],
    [{ ports: [{ host: 70_000, guest: 80 }] }, /host port/],
    [{ timeoutMs: -1 }, /timeoutMs/],
  ])('%j is refused before anything is fetched', async (options, message) => {
    // An image that would fail later, and otherwise.
    await fails(create({ image: '127.0.0.1:1/a', ...options }), 'INVALID', message)
  })
})

describe.skipIf(!has('busybox'))('boxes', () => {
  it('that do not exist, exist already, or are in the wrong state', async () => {
    await fails(Box.get('nobody', runtime), 'NOT_FOUND', /no box 'nobody': 'vitrine ps --all'/)
    const box = await create({ name: 'here' })
    await fails(create({ name: 'here' }), 'NAME_IN_USE', /choose another name, or remove it with 'vitrine rm here'/)
    await fails(box.metrics(), 'WRONG_STATE', /'here' is not running: start it first/)
    await fails(box.vmm(), 'WRONG_STATE', /start it first/)
    {
      using _running = ProcessLock.tryAcquire(box.folder.vmmLock)!
      expect(box.state).toBe('running')
      await fails(box.remove(), 'WRONG_STATE', /is running: stop it first, or remove it by force/)
    }
    await box.stop() // no effect on one that is stopped
    const same = await Box.get('here', runtime)
    await same.remove()
    await fails(box.start(), 'NOT_FOUND', /no box/)
    await fails(box.exec('true'), 'NOT_FOUND', /no box/)
    await fails(Box.get('here', runtime), 'NOT_FOUND', /no box 'here'/)
  })

  it('whose record is damaged, or whose image is gone', async () => {
    const box = await create({ name: 'broken' })
    rmSync((JSON.parse(readFileSync(box.folder.record, 'utf8')) as { baseDisk: string }).baseDisk)
    await fails(box.start(), 'NOT_FOUND', /'vitrine pull base', or remove the box with 'vitrine rm broken'/)
    // Fetching it again mends it: the same image is the same file.
    await (await create({ name: 'other' })).remove()
    writeFileSync(box.folder.record, '{')
    await fails(Box.get('broken', runtime), 'INVALID', /damaged: remove the box with 'vitrine rm --force/)
  })
})
