/**
 * Reading file systems that nobody here wrote: made by mke2fs in every flavour, and by Linux through a loop mount, copied in the
 * middle of its work so that the journal matters. e2fsck replays such a copy, Linux mounts the result: we must have read the same.
 */

import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { copyFileSync, mkdirSync, mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { describeFolder, noLoopMount, run, type TreeFacts, withMounted } from '../../../../test/image/oracles.ts'
import { openDisk } from '../../../qcow2/open.ts'
import { readDisk, writeDisk } from '../../../qcow2/testing/disk-io.ts'
import { Random } from '../../../qcow2/testing/random.ts'
import { compareVolumes } from './compare.ts'
import { Ext4Volume, type VolumeInode } from './volume.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-ext4-reader-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

function withVolume<T>(path: string, use: (volume: Ext4Volume) => T): T {
  const image = openDisk(path, { format: 'raw', readOnly: true, lock: false })
  try {
    return use(new Ext4Volume(image))
  } finally {
    image.close()
  }
}

/** The facts that `describeFolder` gives, without times. */
function describeVolume(volume: Ext4Volume): TreeFacts {
  const facts: TreeFacts = new Map()
  const firstPath = new Map<number, string>()
  const visit = (directory: VolumeInode, prefix: string): void => {
    const entries = volume.entries(directory).sort((a, b) => (a.name < b.name ? -1 : 1))
    for (const { name, inode: number } of entries) {
      const path = `${prefix}/${name}`
      if (path === '/lost+found') continue
      const inode = volume.inode(number)
      const words = [inode.kind, inode.mode.toString(8), `${inode.uid}:${inode.gid}`]
      if (inode.kind === 'character' || inode.kind === 'block') words.push(`rdev ${inode.device}`)
      if (inode.kind === 'symlink') words.push(`-> ${volume.target(inode)}`)
      if (inode.kind === 'file') {
        const bytes = volume.read(inode, 0, inode.size)
        words.push(`size ${inode.size}`, createHash('sha256').update(bytes).digest('hex').slice(0, 16))
      }
      if (inode.kind !== 'directory' && inode.links > 1) {
        if (!firstPath.has(number)) firstPath.set(number, path)
        words.push(`links ${inode.links} with ${firstPath.get(number)}`)
      }
      const attributes = volume
        .attributes(inode)
        .filter(({ name: each }) => each !== 'system.data')
        .map(({ name: each, value }) => `${each}=0x${Buffer.from(value).toString('hex')}`)
      if (attributes.length > 0) words.push(attributes.sort().join(' '))
      facts.set(path, words.join(' '))
      if (inode.kind === 'directory') visit(inode, path)
    }
  }
  visit(volume.root, '')
  return facts
}

const ignoreTime = (): boolean => true

describe('file systems of mke2fs', () => {
  const tree = join(folder, 'tree')
  const random = new Random(8)
  let facts: TreeFacts

  beforeAll(() => {
    mkdirSync(join(tree, 'etc/deep/er'), { recursive: true })
    writeFileSync(join(tree, 'etc/small'), 'forty bytes or so, that fit in an inode')
    writeFileSync(join(tree, 'etc/hundred'), random.bytes(100))
    writeFileSync(join(tree, 'etc/deep/er/large'), random.bytes(1_500_000))
    writeFileSync(join(tree, 'empty'), '')
    run('sh', [
      '-c',
      `cd ${tree} && ln -s short link && ln -s ${'long/'.repeat(40)} long && ln etc/small etc/again && mkfifo pipe
       mkdir many && (cd many && seq 1 300 | sed 's/^/a-file-with-quite-a-long-name-/' | xargs touch)
       dd if=/dev/urandom of=holes bs=1000 count=1 seek=2000 2>/dev/null && mknod null c 1 3; chmod 4711 etc/small
       setfattr -n user.note -v hello etc/hundred && setfattr -n user.big -v ${'x'.repeat(600)} etc/deep`,
    ])
    facts = describeFolder(tree, { ignoreTime })
  })

  it.each([
    ['as usual', ['-t', 'ext4', '-b', '4096']],
    ['with blocks of 1 KiB', ['-t', 'ext4', '-b', '1024']],
    ['with inline data', ['-t', 'ext4', '-O', 'inline_data', '-I', '512']],
    ['without extents or a journal', ['-t', 'ext2']],
    ['as ext3', ['-t', 'ext3', '-b', '2048']],
    [
      'with meta_bg and without 64bit',
      ['-t', 'ext4', '-O', 'meta_bg,^resize_inode,^64bit', '-b', '1024', '-g', '1024'],
    ],
    ['with bigalloc', ['-t', 'ext4', '-O', 'bigalloc', '-C', '16384']],
  ] as const)('%s', (_, options) => {
    const path = join(folder, 'made.img')
    rmSync(path, { force: true })
    run('mke2fs', ['-q', ...options, '-d', tree, path, '24M'])
    expect(withVolume(path, describeVolume)).toEqual(facts)
  })
})

describe.skipIf(noLoopMount)('file systems that were not unmounted', () => {
  /** Work that leaves something of everything in the journal: new, changed, removed and moved, directories that grow. */
  const WORK = `
    mkdir -p a/b/c && for i in $(seq 1 200); do echo $i > a/b/file-$i; done; sync -f .
    rm -r a/b/c; for i in $(seq 1 40); do rm a/b/file-$i; done; mv a/b/file-50 moved; ln a/b/file-60 hard
    head -c 1000000 /dev/urandom > blob; ln -s ${'target/'.repeat(12)} slow; ln -s fast quick; mkfifo pipe
    setfattr -n user.k -v v blob; setfattr -n user.large -v ${'y'.repeat(900)} a; chmod 600 a/b/file-70; chown 5:6 a/b/file-71
    sync -f .; for i in $(seq 1 80); do mkdir d$i; echo $i > d$i/x; done; sync d9/x; rm -r d1 d2 d3; truncate -s 100 blob; sync d80/x
    echo new > a/b/file-100; sync a/b/file-100 `

  it.each([
    ['as usual', []],
    ['with blocks of 1 KiB, which are freed and used again', ['-b', '1024', '-J', 'size=1']],
    ['with a journal without checksums', ['-O', '^metadata_csum,^64bit']],
  ] as const)('%s', (_, options) => {
    const path = join(folder, 'live.img')
    const crashed = join(folder, 'crashed.img')
    const repaired = join(folder, 'repaired.img')
    for (const each of [path, crashed, repaired]) rmSync(each, { force: true })
    run('mke2fs', ['-q', '-t', 'ext4', ...options, path, '24M'])
    const mount = join(folder, 'mount')
    mkdirSync(mount, { recursive: true })
    // Long between commits, so that what is not committed at the end is known; no checkpoint before the copy.
    run('mount', ['-o', 'loop,commit=300', path, mount])
    try {
      spawnSync('sh', ['-c', `cd ${mount} && ${WORK}`])
      run('sh', ['-c', `cd ${mount} && echo not committed > later && rm moved`])
      copyFileSync(path, crashed)
    } finally {
      run('umount', [mount])
      rmdirSync(mount)
    }
    expect(run('dumpe2fs', ['-h', crashed])).toMatch(/needs_recovery/)
    copyFileSync(crashed, repaired)
    const fsck = spawnSync('e2fsck', ['-fy', repaired], { encoding: 'utf8' })
    expect([fsck.status! & ~1, /recovering journal/i.test(fsck.stdout + fsck.stderr)]).toEqual([0, true])
    const facts = withVolume(crashed, describeVolume)
    expect(facts.size).toBeGreaterThan(300)
    expect(facts).toEqual(withMounted(repaired, mounted => describeFolder(mounted, { ignoreTime })))
    // Without its journal it would have looked different, or this test shows nothing.
    const image = openDisk(crashed, { format: 'raw' })
    const superblock = readDisk(image, 1024, 1024)
    superblock[0x60]! &= ~4
    writeDisk(image, 1024, superblock)
    image.close()
    let without: TreeFacts | undefined
    try {
      without = withVolume(crashed, describeVolume)
    } catch {
      // It cannot even be read.
    }
    expect(without).not.toEqual(facts)
  })
})

describe('two file systems', () => {
  it('are compared path by path', async () => {
    const base = join(folder, 'base')
    run('sh', [
      '-c',
      `mkdir -p ${base}/dir/sub ${base}/gone && cd ${base} && echo same > same && echo one > content && echo x > mode && echo x > owner
       ln -s a link && echo x > dir/sub/file && echo x > gone/file && echo x > type && echo x > attr && truncate -s 5M sparse`,
    ])
    const before = join(folder, 'before.img')
    const after = join(folder, 'after.img')
    run('mke2fs', ['-q', '-t', 'ext4', '-d', base, before, '8M'])
    run('sh', [
      '-c',
      `cd ${base} && echo two > content && chmod 600 mode && chown 7:8 owner && ln -sf b link && rm -r gone && rm type && mkdir type
       echo x > type/in && mkdir -p dir/new/er && echo x > dir/new/er/f && setfattr -n user.a -v b attr
       printf y | dd of=sparse bs=1 seek=4000000 conv=notrunc 2>/dev/null`,
    ])
    run('mke2fs', ['-q', '-t', 'ext4', '-d', base, after, '8M'])
    const [a, b] = [before, after].map(path => openDisk(path, { format: 'raw', readOnly: true }))
    const changes = await compareVolumes(new Ext4Volume(a!), new Ext4Volume(b!))
    expect(changes.map(({ kind, path, what }) => `${kind} ${path} ${what ?? ''}`.trim())).toEqual([
      'changed /attr attributes',
      'changed /content content',
      'added /dir/new',
      'added /dir/new/er',
      'added /dir/new/er/f',
      'removed /gone',
      'removed /gone/file',
      'changed /link target',
      'changed /mode mode',
      'changed /owner owner',
      'changed /sparse content',
      'changed /type type',
      'added /type/in',
    ])
    expect(await compareVolumes(new Ext4Volume(b!), new Ext4Volume(b!))).toEqual([])
    a!.close()
    b!.close()
  })

  it('that are damaged are refused with a typed error, or read as something', async () => {
    const random = new Random(9)
    const path = join(folder, 'before.img')
    const good = openDisk(path, { format: 'raw', readOnly: true })
    const volume = new Ext4Volume(good)
    const { blockSize } = volume
    const tables = [1024, 2 * blockSize, ...volume.runs(volume.root).map(({ block }) => block * blockSize)]
    const damagedPath = join(folder, 'damaged.img')
    copyFileSync(path, damagedPath)
    const image = openDisk(damagedPath, { format: 'raw' })
    let refused = 0
    for (let round = 0; round < 60; round++) {
      const at = tables[random.below(tables.length)]! + random.below(2) * 512
      const before = readDisk(image, at, 512)
      const noise = before.slice()
      for (let i = 0; i < 12; i++) noise[random.below(512)] = random.below(256)
      writeDisk(image, at, noise)
      try {
        await compareVolumes(volume, new Ext4Volume(image))
      } catch (error) {
        expect(error).toMatchObject({ name: 'ImageError' })
        refused++
      }
      writeDisk(image, at, before)
    }
    image.close()
    expect(refused).toBeGreaterThan(5)
    good.close()
  })
})
