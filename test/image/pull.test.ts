/** Images pushed by skopeo to Debian's registry, pulled and built by us, against what umoci makes of the same layers. */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { ImageProgress } from '../../src/image/progress.ts'
import { ImageStore } from '../../src/image/store.ts'
import { OciLayout } from './oci-layout.ts'
import { checkFileSystem, describeFolder, has, noLoopMount, run, withMounted } from './oracles.ts'
import { type RunningRegistry, startRegistry } from './registry-process.ts'
import { type TarSpec, tarOf } from './tar-writer.ts'

const missing = ['skopeo', 'umoci', 'docker-registry'].filter(tool => !has(tool))
const reason = missing.length > 0 ? `not installed: ${missing.join(', ')}` : noLoopMount

/** Three layers with a bit of everything that layers do to each other. */
function layers(): Buffer[] {
  const capability = Buffer.from('0100000200040000000000000000000000000000', 'hex')
  const big = Buffer.alloc(3_000_000, 'vitrine ')
  const lower: TarSpec[] = [
    { path: './', type: '5', mode: 0o755 },
    { path: 'etc/', type: '5', mode: 0o755, mtime: 1_400_000_000 },
    { path: 'etc/passwd', data: Buffer.from('root:x:0:0::/root:/bin/sh\n'), pax: { mtime: '1400000001.123456789' } },
    { path: 'etc/shadow', data: Buffer.from('secret'), mode: 0o640, gid: 42 },
    { path: 'usr/', type: '5' },
    { path: 'usr/lib/', type: '5' },
    { path: 'usr/bin/', type: '5' },
    { path: 'usr/bin/ping', data: big, mode: 0o755, pax: { 'SCHILY.xattr.security.capability': capability } },
    { path: 'usr/bin/ping4', type: '1', linkPath: 'usr/bin/ping' },
    { path: 'lib', type: '2', linkPath: 'usr/lib' },
    { path: 'abs', type: '2', linkPath: '/etc/passwd' },
    { path: 'opt/', type: '5' },
    { path: 'opt/old', data: Buffer.from('old') },
    { path: 'opt/keep', data: Buffer.from('keep') },
    { path: 'var/', type: '5' },
    { path: 'var/cache/', type: '5' },
    { path: 'var/cache/a', data: Buffer.from('a') },
    { path: 'var/cache/deep/', type: '5' },
    { path: 'var/cache/deep/b', data: Buffer.from('b') },
    { path: 'tobefile/', type: '5' },
    { path: 'tobefile/x', data: Buffer.from('x') },
    { path: 'tobedir', data: Buffer.from('file') },
    { path: `var/${'long-'.repeat(30)}name`, data: Buffer.from('long') },
    { path: 'tmp/', type: '5', mode: 0o1777 },
  ]
  const middle: TarSpec[] = [
    { path: 'opt/.wh.old', data: Buffer.alloc(0) },
    { path: 'opt/new', data: Buffer.from('new'), uid: 1000, gid: 1000, mode: 0o4755 },
    { path: 'var/cache/', type: '5', mode: 0o700 },
    { path: 'var/cache/.wh..wh..opq', data: Buffer.alloc(0) },
    { path: 'var/cache/c', data: Buffer.from('c') },
    { path: 'tobefile', data: Buffer.from('now a file') },
    { path: 'tobedir/', type: '5' },
    { path: 'tobedir/y', data: Buffer.from('y') },
    { path: 'lib/through-link', data: Buffer.from('in usr/lib') },
    {
      path: 'etc/note',
      data: Buffer.from('n'),
      pax: { 'SCHILY.xattr.user.note': 'hello', 'SCHILY.xattr.user.long': 'z'.repeat(500) },
    },
  ]
  const upper: TarSpec[] = [
    { path: 'etc/.wh.shadow', data: Buffer.alloc(0) },
    {
      path: 'etc/passwd',
      data: Buffer.from('changed'),
      uid: 70_000,
      gid: 3_000_000,
      pax: { uid: '70000', gid: '3000000' },
    },
    { path: 'usr/bin/ping-copy', type: '1', linkPath: 'usr/bin/ping' },
    { path: 'opt/empty', data: Buffer.alloc(0) },
    { path: 'dev/', type: '5' },
    { path: 'dev/fifo', type: '6' },
  ]
  // mtime, uid and gid come from the same fields everywhere, so umoci sees what we see.
  return [lower, middle, upper].map(tarOf)
}

describe.skipIf(reason)('images from a registry', { timeout: 180_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-pull-'))
  const home = join(folder, 'home')
  const layout = new OciLayout(join(folder, 'layout'))
  let registry: RunningRegistry
  let digest = ''
  const config = {
    Env: ['PATH=/bin', 'A=b=c'],
    Cmd: ['sh'],
    Entrypoint: ['/bin/env'],
    User: '1000:1000',
    WorkingDir: '/opt',
  }

  beforeAll(async () => {
    registry = await startRegistry(folder)
    for (const compression of ['gzip', 'zstd', 'none'] as const)
      layout.image(compression, layers(), { compression, config })
    for (const tag of ['gzip', 'zstd', 'none']) {
      run('skopeo', [
        'copy',
        '-q',
        '--preserve-digests',
        '--dest-tls-verify=false',
        `oci:${layout.path}:${tag}`,
        `docker://${registry.host}/test/image:${tag}`,
      ])
    }
    digest = run('skopeo', [
      'inspect',
      '--tls-verify=false',
      '--format',
      '{{.Digest}}',
      `docker://${registry.host}/test/image:gzip`,
    ]).trim()
  })
  afterAll(async () => {
    await registry?.stop()
    rmSync(folder, { recursive: true })
  })

  /** umoci names no time for directories that no layer names; ours is 1970. */
  const ignoreTime = (path: string): boolean => path === '/tobedir' || path === '/dev' || path === '/opt'

  it('pulls by tag and by digest, and the tree is the one that umoci makes', async () => {
    const events: ImageProgress[] = []
    const store = new ImageStore({ home })
    const image = await store.get(`${registry.host}/test/image:gzip`, { onProgress: event => events.push(event) })
    expect(image.digest).toBe(digest)
    expect(image.config).toMatchObject({
      entrypoint: ['/bin/env'],
      cmd: ['sh'],
      env: { PATH: '/bin', A: 'b=c' },
      user: '1000:1000',
      workdir: '/opt',
    })
    checkFileSystem(image.disk)
    run('umoci', ['unpack', '--image', `${layout.path}:gzip`, join(folder, 'bundle')])
    const expected = describeFolder(join(folder, 'bundle', 'rootfs'), { ignoreTime })
    const actual = withMounted(image.disk, mounted => describeFolder(mounted, { ignoreTime }))
    expect([...actual]).toEqual([...expected])
    expect(actual.size).toBeGreaterThan(25)
    const done = events.filter(
      event => event.type === 'layer' && event.phase === 'download' && event.done === event.total,
    )
    expect(done.length).toBeGreaterThanOrEqual(3)
    expect(events.at(-1)).toMatchObject({ type: 'done' })

    const again: ImageProgress[] = []
    const byDigest = await store.get(`${registry.host}/test/image@${digest}`, {
      onProgress: event => again.push(event),
    })
    expect(byDigest.disk).toBe(image.disk)
    expect(again.some(event => event.type === 'layer')).toBe(false)
  })

  it('makes the same file system of gzip, zstd and uncompressed layers, of a layout, a save and a tarball', async () => {
    const store = new ImageStore({ home })
    const image = await store.get(`${registry.host}/test/image:gzip`)
    const zstd = await store.get(`${registry.host}/test/image:zstd`)
    const none = await store.get(`${registry.host}/test/image:none`)
    // The chain of diff ids is the same, so it is the same file; built apart, the bytes are too.
    expect(zstd.disk).toBe(image.disk)
    expect(none.disk).toBe(image.disk)
    const apart = async (text: string): Promise<string> => {
      const other = mkdtempSync(join(folder, 'apart-'))
      const { disk } = await new ImageStore({ home: other }).get(text, { diskBytes: 2 ** 27 })
      const sum = run('sha256sum', [disk]).split(' ')[0]!
      rmSync(other, { recursive: true })
      return sum
    }
    const sums = [await apart(`${registry.host}/test/image:gzip`), await apart(`${registry.host}/test/image:zstd`)]
    sums.push(await apart(`oci:${layout.path}:none`))
    const save = join(folder, 'save.tar')
    run('skopeo', ['copy', '-q', `oci:${layout.path}:gzip`, `docker-archive:${save}:test/image:saved`])
    sums.push(await apart(save), await apart(`docker-archive:${save}:test/image:saved`))
    const tarred = join(folder, 'layout.tar')
    run('skopeo', ['copy', '-q', `oci:${layout.path}:gzip`, `oci-archive:${tarred}`])
    sums.push(await apart(tarred))
    run('gzip', ['-kf', tarred])
    sums.push(await apart(`${tarred}.gz`))
    expect(new Set(sums).size).toBe(1)
    expect(sums).toHaveLength(7)
  })

  it('builds once when several ask at once, and takes nothing from the network when it has the image', async () => {
    const other = join(folder, 'crowd')
    const reference = `${registry.host}/test/image:gzip`
    const builds: string[] = []
    const images = await Promise.all(
      Array.from({ length: 4 }, () =>
        new ImageStore({ home: other }).get(reference, {
          onProgress: event => event.type === 'disk' && builds.push('x'),
        }),
      ),
    )
    expect(new Set(images.map(({ disk }) => disk)).size).toBe(1)
    expect(readdirSync(join(other, 'images', 'tmp'))).toEqual([])
    const store = new ImageStore({ home: other, http: { attempts: 1 } })
    await store.get(reference, { onProgress: () => expect.unreachable() })
    await store.get(reference, { pull: 'never' })
    await expect(store.get(`${registry.host}/test/other`, { pull: 'never' })).rejects.toMatchObject({
      code: 'NOT_FOUND',
    })
  })

  it('mends a cache whose blobs were damaged, and rebuilds a disk that is gone', async () => {
    const other = join(folder, 'mend')
    const reference = `${registry.host}/test/image:gzip`
    const store = new ImageStore({ home: other })
    const image = await store.get(reference)
    rmSync(image.disk)
    const blobs = join(other, 'images', 'blobs', 'sha256')
    for (const name of readdirSync(blobs)) {
      const path = join(blobs, name)
      const bytes = readFileSync(path)
      if (bytes[0] !== 0x1f) continue
      bytes[bytes.length >> 1]! ^= 0x40
      chmodSync(path, 0o600)
      writeFileSync(path, bytes)
    }
    const again = await store.get(reference)
    expect(again.disk).toBe(image.disk)
    checkFileSystem(again.disk)
  })

  it('lists, removes and prunes, and keeps what boxes stand on', async () => {
    const other = join(folder, 'prune')
    const store = new ImageStore({ home: other })
    const image = await store.get(`${registry.host}/test/image:gzip`)
    await store.get(`${registry.host}/test/image:zstd`)
    const base = await store.get('base')
    expect(store.list().map(({ name }) => name)).toHaveLength(3)
    // The disk is shared by both tags: it goes with the second.
    await store.remove(`${registry.host}/test/image:gzip`)
    expect(existsSync(image.disk)).toBe(true)
    await store.remove(`${registry.host}/test/image:zstd`, new Set([image.disk]))
    expect(existsSync(image.disk)).toBe(true)
    const { freedBytes } = await store.prune({ graceMs: 0 })
    expect(existsSync(image.disk)).toBe(false)
    expect(freedBytes).toBeGreaterThan(3_000_000)
    expect(readdirSync(join(other, 'images', 'blobs', 'sha256'))).toEqual([])
    expect(existsSync(base.disk)).toBe(true)
    await store.prune({ graceMs: 0, maxBytes: 0 })
    expect(store.list()).toEqual([])
    expect(existsSync(base.disk)).toBe(false)
    await expect(store.remove('base')).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })

  it('says what is wrong with names and registries', async () => {
    const store = new ImageStore({ home, http: { attempts: 1 } })
    await expect(store.get(`${registry.host}/test/image:nope`)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(store.get(`${registry.host}/no/such`)).rejects.toMatchObject({ code: 'NOT_FOUND' })
    await expect(store.get('127.0.0.1:1/x/y')).rejects.toMatchObject({ code: 'NETWORK' })
    await expect(store.get('no-such-host.invalid/x/y')).rejects.toMatchObject({ code: 'NETWORK' })
    await expect(store.get('Bad Name')).rejects.toMatchObject({ code: 'BAD_REFERENCE' })
    await expect(store.get('./nowhere')).rejects.toMatchObject({ code: 'NOT_FOUND' })
    expect(readdirSync(join(home, 'images', 'tmp'))).toEqual([])
  })

  it('refuses images that do not fit their disk', async () => {
    const path = new OciLayout(join(folder, 'large'))
    path.image('large', [tarOf([{ path: 'large', data: Buffer.alloc(70 << 20, 'x') }])])
    const store = new ImageStore({ home: join(folder, 'small') })
    await expect(store.get(path.path, { diskBytes: 64 << 20 })).rejects.toMatchObject({ code: 'TOO_LARGE' })
    // The tar fits, its file system does not.
    await expect(store.get(path.path, { diskBytes: 100 << 20 })).rejects.toMatchObject({ code: 'TOO_LARGE' })
    expect(store.cache.disks()).toEqual([])
    const image = await store.get(path.path, { diskBytes: 2 ** 28 })
    expect(image.diskBytes).toBe(2 ** 28)
  })

  it('builds a root directory and a rootfs tarball', async () => {
    const root = join(folder, 'root')
    mkdirSync(join(root, 'etc'), { recursive: true })
    writeFileSync(join(root, 'etc', 'motd'), 'hello')
    const store = new ImageStore({ home })
    const first = await store.get(root)
    const same = await store.get(`dir:${root}`)
    expect(same.disk).toBe(first.disk)
    writeFileSync(join(root, 'etc', 'motd'), 'hello again')
    const changed = await store.get(root)
    expect(changed.disk).not.toBe(first.disk)
    const facts = withMounted(changed.disk, describeFolder)
    expect([...facts]).toEqual([...describeFolder(root)])
    const tar = join(folder, 'rootfs.tar.gz')
    run('tar', ['--format=pax', '-C', root, '-czf', tar, '.'])
    const packed = await store.get(tar)
    expect([...withMounted(packed.disk, describeFolder)]).toEqual([...facts])
    expect(statSync(packed.disk).mode & 0o777).toBe(0o444)
  })
})
