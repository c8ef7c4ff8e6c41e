import { createHash, randomBytes } from 'node:crypto'
import { closeSync, mkdtempSync, openSync, readFileSync, readSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import {
  checkFileSystem,
  debugfs,
  describeFolder,
  noLoopMount,
  noSysResource,
  run,
  withMounted,
} from '../../../test/image/oracles.ts'
import { type ContentSource, type Inode, type InodeKind, newInode } from '../tree/inode.ts'
import { crc32c } from './crc32c.ts'
import { directoryHash } from './dir-hash.ts'
import { type Ext4Options, type Ext4Result, writeExt4 } from './writer.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-ext4-'))
afterAll(() => rmSync(folder, { recursive: true }))

/** A source of bytes that files of the trees here are cut from. */
const SOURCE_BYTES = 4 << 20
const sourcePath = join(folder, 'source')
const sourceBytes = randomBytes(SOURCE_BYTES)
// A stretch of zeros, so that some files have some.
sourceBytes.fill(0, 1 << 20, 2 << 20)
writeFileSync(sourcePath, sourceBytes)
const source: ContentSource = {
  name: sourcePath,
  acquire: () => openSync(sourcePath, 'r'),
  release: closeSync,
}

let images = 0
async function build(root: Inode, options: Partial<Ext4Options> = {}): Promise<{ path: string; result: Ext4Result }> {
  const path = join(folder, `${images++}.ext4`)
  const result = await writeExt4(path, root, { identity: 'test', ...options })
  return { path, result }
}

function directory(mode = 0o755): Inode {
  const inode = newInode('directory', mode)
  inode.mtime = 1_700_000_000
  return inode
}

function file(size: number, offset = 0): Inode {
  const inode = newInode('file', 0o644)
  inode.size = size
  inode.mtime = 1_600_000_000
  if (size > 0) inode.content = { source, offset }
  return inode
}

function symlink(target: string): Inode {
  const inode = newInode('symlink', 0o777)
  inode.target = target
  return inode
}

const sha = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex').slice(0, 16)

/** The same facts as `describeFolder` gives, from the tree in memory. */
function describeTree(root: Inode): Map<string, string> {
  const facts = new Map<string, string>()
  const paths = new Map<Inode, string[]>()
  const visit = (inode: Inode, prefix: string): void => {
    for (const name of [...inode.children!.keys()].sort()) {
      const child = inode.children!.get(name)!
      const path = `${prefix}/${name}`
      if (path === '/lost+found') continue
      const same = paths.get(child)
      if (same) same.push(path)
      else paths.set(child, [path])
      facts.set(path, '')
      if (child.kind === 'directory') visit(child, path)
    }
  }
  visit(root, '')
  for (const [inode, [first, ...others]] of paths) {
    const words: string[] = [inode.kind, inode.mode.toString(8), `${inode.uid}:${inode.gid}`]
    words.push(`mtime ${BigInt(inode.mtime) * 1_000_000_000n + BigInt(inode.mtimeNs)}`)
    if (inode.kind === 'character' || inode.kind === 'block') {
      const { major, minor } = inode
      // glibc's makedev.
      const rdev =
        (BigInt(major & 0xfff) << 8n) |
        BigInt(minor & 0xff) |
        (BigInt(minor & ~0xff) << 12n) |
        (BigInt(major & ~0xfff) << 32n)
      words.push(`rdev ${rdev}`)
    }
    if (inode.kind === 'symlink') words.push(`-> ${inode.target}`)
    if (inode.kind === 'file') words.push(`size ${inode.size}`, sha(contentOf(inode)))
    if (others.length > 0) words.push(`links ${others.length + 1} with ${first}`)
    if (inode.xattrs) {
      const lines = [...inode.xattrs].map(([name, value]) => `${name}=0x${Buffer.from(value).toString('hex')}`)
      words.push(lines.sort().join(' '))
    }
    for (const path of [first!, ...others]) facts.set(path, words.join(' '))
  }
  return facts
}

function contentOf(inode: Inode): Buffer {
  const bytes = Buffer.alloc(inode.size)
  if (!inode.content) return bytes
  if ('bytes' in inode.content) return Buffer.from(inode.content.bytes)
  const { offset, map } = inode.content
  if (!map) return sourceBytes.subarray(offset, offset + inode.size)
  for (let i = 0; i < map.length; i += 3) {
    sourceBytes.copy(bytes, map[i]!, offset + map[i + 2]!, offset + map[i + 2]! + map[i + 1]!)
  }
  return bytes
}

/** How many images Linux has mounted and looked through. */
let mounts = 0

/** Runs `look` on the mounted image; where this host cannot mount, the last test here is skipped visibly. */
function whereMounted<T>(path: string, look: (mounted: string) => T): T | undefined {
  if (noLoopMount) return undefined
  mounts++
  return withMounted(path, look)
}

/** e2fsck must find it clean and, where the kernel can mount it, Linux must see the tree that we meant. */
function expectSame(path: string, root: Inode): void {
  checkFileSystem(path)
  const seen = whereMounted(path, describeFolder)
  if (seen) expect([...seen].filter(([at]) => at !== '/lost+found')).toEqual([...describeTree(root)])
}

describe('checksums and hashes', () => {
  it('computes the published CRC-32C check value', () => {
    expect(~crc32c(~0, Buffer.from('123456789')) >>> 0).toBe(0xe3069283)
    const bytes = randomBytes(1000)
    expect(crc32c(crc32c(~0, bytes, 0, 333), bytes, 333)).toBe(crc32c(~0, bytes))
  })

  it('hashes names as debugfs does', () => {
    const uuid = '01234567-89ab-cdef-0123-456789abcdef'
    const seed = Buffer.from(uuid.replaceAll('-', ''), 'hex')
    const words = Uint32Array.from([0, 4, 8, 12], at => seed.readUInt32LE(at))
    // ASCII only: debugfs hashes with signed characters here. e2fsck and the kernel see the others below.
    const names = ['a', 'abc', 'abcd', 'x'.repeat(31), 'y'.repeat(32), 'z'.repeat(33), 'w'.repeat(255)]
    for (const name of names) {
      const output = run('debugfs', ['-R', `dx_hash -h half_md4 -s ${uuid} ${name}`])
      const [, hash] = /is 0x([0-9a-f]+)/.exec(output) ?? []
      expect(directoryHash(Buffer.from(name), words), name).toBe(Number.parseInt(hash!, 16))
    }
  })
})

describe('ext4 images', { timeout: 120_000 }, () => {
  it('holds every kind of inode', async () => {
    const root = directory()
    const put = (name: string, inode: Inode): Inode => {
      root.children!.set(name, inode)
      return inode
    }
    put('empty', file(0))
    put('one', file(1))
    put('block', file(4096, 5))
    put('large', file(3_000_001, 17))
    put('caf\xe9 not utf8', file(10))
    const linked = put('linked', file(5000))
    put('linked-again', linked)
    put('fast', symlink('a'.repeat(59)))
    put('slow', symlink('b'.repeat(60)))
    put('slowest', symlink('c'.repeat(4095)))
    put('absolute', symlink('/etc/passwd'))
    for (const [kind, major, minor] of [
      ['character', 1, 3],
      ['block', 259, 70_000],
      ['fifo', 0, 0],
      ['socket', 0, 0],
    ] as [InodeKind, number, number][]) {
      const inode = put(kind === 'block' ? 'block-device' : kind, newInode(kind, 0o600))
      inode.major = major
      inode.minor = minor
    }
    const owned = put('owned', file(3))
    owned.uid = 0x12345
    owned.gid = 0xfffe0001
    owned.mode = 0o6755
    const times: [string, number, number][] = [
      ['before-1970', -1, 999_999_999],
      ['1901', -(2 ** 31), 0],
      ['2038', 2 ** 31 - 1, 1],
      ['2039', 2 ** 31, 123_456_789],
      ['2106', 2 ** 32 + 5, 7],
      ['2446', 2 ** 34 - 2 ** 31 - 1, 999_999_999],
    ]
    for (const [name, seconds, nanoseconds] of times) {
      const inode = put(name, file(0))
      inode.mtime = seconds
      inode.mtimeNs = nanoseconds
    }
    put('deep', directory(0o1777)).children!.set('er', directory(0o700))
    const { path } = await build(root)
    expectSame(path, root)
    expect(debugfs(path, 'stat /before-1970')).toContain('mtime: 0xffffffff:ee6b27fc')
  })

  it('keeps extended attributes in the inode when they fit, and in a block when they do not', async () => {
    const root = directory()
    const attributes = (name: string, pairs: [string, Uint8Array][]): void => {
      const inode = file(1)
      inode.xattrs = new Map(pairs)
      root.children!.set(name, inode)
    }
    const capability = Buffer.from('0100000200040000000000000000000000000000', 'hex')
    attributes('capability', [['security.capability', capability]])
    attributes('small', [
      ['user.a', Buffer.from('1')],
      ['user.b', Buffer.alloc(0)],
    ])
    attributes('block', [
      ['user.long', randomBytes(900)],
      ['user.a', Buffer.from('x')],
      ['trusted.t', Buffer.from('y')],
    ])
    attributes('full', [['user.full', Buffer.alloc(4096 - 32 - 16 - 4 - 4, 9)]])
    // user::rw-, user:1000:r--, group::r--, mask::r--, other::r-- as getxattr returns it.
    const acl = Buffer.from(
      '0200000001000600ffffffff02000400e803000004000400ffffffff10000400ffffffff20000400ffffffff',
      'hex',
    )
    attributes('acl', [['system.posix_acl_access', acl]])
    const { path } = await build(root)
    expectSame(path, root)
    expect(debugfs(path, 'ea_get -x /capability security.capability').replaceAll(/\s/g, '')).toContain(
      '0100000200040000',
    )
    const inode = file(1)
    inode.xattrs = new Map([['user.huge', Buffer.alloc(5000)]])
    root.children!.set('huge', inode)
    await expect(build(root)).rejects.toMatchObject({ code: 'UNSUPPORTED' })
  })

  it('turns zeros and the holes of sparse files into holes', async () => {
    const root = directory()
    root.children!.set('zeros', file(1 << 20, 1 << 20))
    root.children!.set('some', file(3 << 20, 0))
    const sparse = file(0)
    sparse.size = 20 * 2 ** 20 + 1
    // Segments that begin and end inside blocks, two of which share one.
    sparse.content = {
      source,
      offset: 100,
      map: Float64Array.from([
        10,
        100,
        0,
        200,
        50,
        100,
        8192,
        8192,
        150,
        2 ** 24 - 3,
        10_000,
        9000,
        20 * 2 ** 20,
        1,
        50_000,
      ]),
    }
    const far = file(0)
    far.size = 5 * 2 ** 30 + 1
    far.content = { source, offset: 0, map: Float64Array.from([5 * 2 ** 30, 1, 7]) }
    root.children!.set('far', far)
    root.children!.set('sparse', sparse)
    const { path } = await build(root)
    checkFileSystem(path)
    expect(debugfs(path, 'stat /zeros')).toMatch(/Blockcount: 0/)
    expect(debugfs(path, 'stat /some')).toMatch(/Blockcount: 4096/)
    const out = join(folder, 'sparse.out')
    debugfs(path, `dump /sparse ${out}`)
    expect(statSync(out).size).toBe(sparse.size)
    const fd = openSync(out, 'r')
    const at = (position: number, length: number): Buffer => {
      const bytes = Buffer.alloc(length)
      readSync(fd, bytes, 0, length, position)
      return bytes
    }
    const { map } = sparse.content
    for (let i = 0; i < map!.length; i += 3) {
      const from = 100 + map![i + 2]!
      expect(at(map![i]!, map![i + 1]!).equals(sourceBytes.subarray(from, from + map![i + 1]!)), `segment ${i}`).toBe(
        true,
      )
    }
    expect(at(110, 90).every(byte => byte === 0)).toBe(true)
    closeSync(fd)
    rmSync(out)
    whereMounted(path, mounted => {
      const last = run('tail', ['-c', '2', join(mounted, 'far')])
      expect(last).toBe(String.fromCharCode(0, sourceBytes[7]!))
    })
  })

  it('indexes directories of 100,000 entries, which Linux finds by name', async () => {
    const root = directory()
    const many = directory()
    root.children!.set('many', many)
    const inode = file(0)
    for (let i = 0; i < 100_000; i++) {
      // A few inodes with very many names keep the test quick: what counts is the directory.
      many.children!.set(`entry-${i}-${'x'.repeat(i % 40)}`, i % 60_000 === 0 ? file(0) : inode)
    }
    const few = directory()
    root.children!.set('few', few)
    for (let i = 0; i < 400; i++) few.children!.set(`n${i}`, file(1))
    const nested = directory()
    root.children!.set('folders', nested)
    for (let i = 0; i < 1000; i++) nested.children!.set(`d${i}`, directory())
    await expect(build(root)).rejects.toMatchObject({ code: 'UNSUPPORTED' })
    let at = 0
    for (const name of many.children!.keys()) if (at++ % 2 === 0) many.children!.set(name, file(0))
    const { path } = await build(root)
    checkFileSystem(path)
    expect(debugfs(path, 'htree_dump /many').slice(0, 300)).toMatch(/Indirect [Ll]evels: 1/)
    expect(debugfs(path, 'stat /folders')).toMatch(/Links: 1002/)
    whereMounted(path, mounted => {
      for (const i of [0, 1, 39, 12_345, 99_999]) {
        expect(statSync(join(mounted, 'many', `entry-${i}-${'x'.repeat(i % 40)}`)).isFile()).toBe(true)
      }
      expect(Number(run('sh', ['-c', `find ${mounted}/many -type f | wc -l`]))).toBe(100_000)
    })
  })

  it('is the same for the same tree, and different for another identity', async () => {
    const tree = (): Inode => {
      const root = directory()
      for (let i = 0; i < 50; i++) root.children!.set(`f${(i * 7) % 50}`, file(i * 1000))
      return root
    }
    const first = await build(tree())
    const second = await build(tree())
    const third = await build(tree(), { identity: 'other' })
    const digest = (path: string): string => sha(readFileSync(path))
    expect(digest(first.path)).toBe(digest(second.path))
    expect(third.result.uuid).not.toBe(first.result.uuid)
    expect(debugfs(first.path, 'stats')).toContain(first.result.uuid)
    for (const { path } of [first, second, third]) rmSync(path)
  })

  it('is as large as asked, sparse, and can grow', async () => {
    const root = directory()
    root.children!.set('f', file(100_000))
    const { path, result } = await build(root, { minimumBytes: 40 * 2 ** 30 })
    expect(result.bytes).toBe(40 * 2 ** 30)
    expect(statSync(path).blocks * 512).toBeLessThan(4 << 20)
    checkFileSystem(path)
    run('truncate', ['-s', '100G', path])
    run('resize2fs', [path])
    checkFileSystem(path)
    expect(debugfs(path, 'stats')).toMatch(/Block count: +26214400/)
    rmSync(path)
  })

  it.skipIf(noLoopMount ?? noSysResource)('grows online, as the agent in a guest does it', async () => {
    const root = directory()
    root.children!.set('f', file(100_000))
    const { path } = await build(root)
    run('truncate', ['-s', '20G', path])
    const mount = mkdtempSync(join(tmpdir(), 'vitrine-grow-'))
    const device = run('losetup', ['--show', '-f', path]).trim()
    run('mount', [device, mount])
    try {
      run('resize2fs', [device])
      writeFileSync(join(mount, 'after'), sourceBytes)
      expect(readFileSync(join(mount, 'f')).equals(sourceBytes.subarray(0, 100_000))).toBe(true)
    } finally {
      run('umount', [mount])
      run('losetup', ['-d', device])
      rmSync(mount, { recursive: true })
    }
    expect(checkFileSystem(path)).toContain('/5242880 blocks')
    rmSync(path)
  })

  it('refuses what does not fit, and leaves no file', async () => {
    const root = directory()
    root.children!.set('f', file(1 << 20))
    const path = join(folder, 'refused.ext4')
    await expect(writeExt4(path, root, { identity: 'x', maximumBytes: 1 << 20 })).rejects.toMatchObject({
      code: 'TOO_LARGE',
    })
    const gone = file(10, SOURCE_BYTES - 5)
    root.children!.set('short', gone)
    await expect(writeExt4(path, root, { identity: 'x' })).rejects.toMatchObject({ code: 'SOURCE_CHANGED' })
    expect(() => statSync(path)).toThrow('ENOENT')
    root.children!.set('x'.repeat(256), file(0))
    await expect(writeExt4(path, root, { identity: 'x' })).rejects.toMatchObject({ code: 'UNSUPPORTED' })
  })

  it('agrees with Linux over random trees', async () => {
    for (let round = 0; round < 3; round++) {
      const root = randomTree(0x9e3779b9 * (round + 1))
      const { path } = await build(root, round % 2 ? { minimumBytes: 2 ** 31 } : {})
      expectSame(path, root)
      rmSync(path)
    }
  })
})

/** A reproducible tree with a bit of everything. */
function randomTree(seed: number): Inode {
  let state = seed >>> 0
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
  const pick = <T>(items: readonly T[]): T => items[random(items.length)]!
  const folders = [directory()]
  const files: Inode[] = []
  const root = folders[0]!
  for (let i = 0; i < 2000; i++) {
    const parent = pick(folders)
    const name = Buffer.from(
      Array.from({ length: 1 + random(30) }, () => pick([97, 98, 46, 32, 0xe9, 48 + random(10)])),
    )
    const key = name.toString('latin1')
    if (key === '.' || key === '..' || parent.children!.has(key)) continue
    const kind = pick<InodeKind>(['file', 'file', 'file', 'directory', 'symlink', 'fifo', 'character'])
    let inode: Inode
    if (kind === 'file' && files.length > 0 && random(10) === 0) inode = pick(files)
    else if (kind === 'file')
      inode = file(pick([0, 1, 4095, 4096, 4097, random(100_000)]), random(SOURCE_BYTES - 200_000))
    else if (kind === 'symlink') inode = symlink('t'.repeat(1 + random(200)))
    else inode = kind === 'directory' ? directory() : newInode(kind, 0)
    if (kind === 'file') files.push(inode)
    if (kind === 'directory') folders.push(inode)
    if (kind === 'character') inode.minor = random(2 ** 20)
    if (kind !== 'symlink') inode.mode = random(0o10000)
    inode.uid = random(2 ** 32)
    inode.mtime = random(2 ** 32)
    inode.mtimeNs = random(1e9)
    if ((kind === 'file' || kind === 'directory') && random(5) === 0) {
      inode.xattrs = new Map([[`user.x${random(9)}`, sourceBytes.subarray(0, random(200))]])
    }
    parent.children!.set(key, inode)
  }
  return root
}

it.skipIf(noLoopMount)('Linux has mounted the images of these tests', () => {
  expect(mounts).toBeGreaterThan(5)
})
