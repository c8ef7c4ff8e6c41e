import { execFileSync } from 'node:child_process'
import { closeSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { checkFileSystem, describeFolder, noLoopMount, run, withMounted } from '../../../test/image/oracles.ts'
import { type TarSpec, tarOf } from '../../../test/image/tar-writer.ts'
import { writeExt4 } from '../ext4/writer.ts'
import { treeOfDirectory } from './directory-source.ts'
import type { Inode } from './inode.ts'
import { LayeredTree } from './layers.ts'
import { TarReader } from './tar-reader.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-layers-'))
afterAll(() => rmSync(folder, { recursive: true }))

let files = 0
function save(bytes: Uint8Array): string {
  const path = join(folder, `${files++}.tar`)
  writeFileSync(path, bytes)
  return path
}

async function apply(...layers: TarSpec[][]): Promise<LayeredTree> {
  const tree = new LayeredTree()
  for (const layer of layers) await tree.applyTar(save(tarOf(layer)), 'test layer')
  return tree
}

/** Paths with a mark for their kind, sorted. */
function list(root: Inode): string[] {
  const found: string[] = []
  const visit = (inode: Inode, prefix: string): void => {
    for (const [name, child] of inode.children!) {
      const marks = { directory: '/', symlink: `@${child.target}`, file: `=${child.size}` } as Record<string, string>
      found.push(`${prefix}${name}${marks[child.kind] ?? `?${child.kind}`}`)
      if (child.kind === 'directory') visit(child, `${prefix}${name}/`)
    }
  }
  visit(root, '')
  return found.sort()
}

const file = (path: string, size = 1): TarSpec => ({ path, data: Buffer.alloc(size, 1) })
const dir = (path: string): TarSpec => ({ path, type: '5' })
const link = (path: string, linkPath: string): TarSpec => ({ path, type: '2', linkPath })
const hard = (path: string, linkPath: string): TarSpec => ({ path, type: '1', linkPath })

describe('applying layers', () => {
  it('lets upper layers add, replace and hide', async () => {
    using tree = await apply(
      [dir('a'), file('a/one'), file('a/two'), dir('b'), file('b/x'), file('c'), dir('d'), file('d/e')],
      [file('a/.wh.one'), file('a/three', 3), file('b/.wh..wh..opq'), file('b/y'), dir('c'), file('d')],
    )
    expect(list(tree.root)).toEqual(['a/', 'a/three=3', 'a/two=1', 'b/', 'b/y=1', 'c/', 'd=1'])
  })

  it('hides only what is below, whatever the order in the layer', async () => {
    using tree = await apply(
      [dir('a'), file('a/old'), dir('a/sub'), file('a/sub/old')],
      [file('a/new'), file('a/sub/new'), file('a/.wh..wh..opq'), file('f'), file('.wh.f')],
    )
    expect(list(tree.root)).toEqual(['a/', 'a/new=1', 'a/sub/', 'a/sub/new=1', 'f=1'])
  })

  it('keeps the children of a directory that is named again, and takes its new attributes', async () => {
    using tree = await apply([dir('a'), file('a/x')], [{ path: 'a/', type: '5', mode: 0o700, uid: 5 }])
    expect(list(tree.root)).toEqual(['a/', 'a/x=1'])
    expect(tree.root.children!.get('a')).toMatchObject({ mode: 0o700, uid: 5 })
  })

  it('follows symbolic links to directories inside the root only', async () => {
    using tree = await apply(
      [
        dir('usr'),
        dir('usr/lib'),
        link('lib', 'usr/lib'),
        link('abs', '/usr'),
        link('out', '../../..'),
        link('loop', 'loop'),
      ],
      [file('lib/x'), file('abs/y'), file('out/z')],
    )
    expect(list(tree.root)).toContain('usr/lib/x=1')
    expect(list(tree.root)).toContain('usr/y=1')
    expect(list(tree.root)).toContain('z=1')
    await expect(tree.applyTar(save(tarOf([file('loop/x')])), 'l')).rejects.toMatchObject({ code: 'BAD_TAR' })
  })

  it('makes hard links within and across layers, and keeps them apart from later files', async () => {
    using tree = await apply([file('a', 9)], [hard('b', 'a'), hard('c', 'b'), file('.wh.a')], [file('b', 2)])
    expect(list(tree.root)).toEqual(['b=2', 'c=9'])
    await expect(tree.applyTar(save(tarOf([hard('x', 'nowhere')])), 'l')).rejects.toMatchObject({ code: 'BAD_TAR' })
  })

  it.each(['../x', 'a/../../x', '/..', 'a/..'])('refuses the path %s', async path => {
    await expect(apply([file(path)])).rejects.toMatchObject({ code: 'TRAVERSAL' })
    await expect(apply([file('ok'), hard('l', path)])).rejects.toMatchObject({ code: 'TRAVERSAL' })
  })

  it('takes absolute paths as paths from the root, and makes directories that no entry names', async () => {
    using tree = await apply([file('/etc/deep/passwd')])
    expect(list(tree.root)).toEqual(['etc/', 'etc/deep/', 'etc/deep/passwd=1'])
    await expect(tree.applyTar(save(tarOf([file('etc/deep/passwd/x')])), 'l')).rejects.toMatchObject({
      code: 'BAD_TAR',
    })
  })
})

describe('tar archives of GNU tar', () => {
  const tree = join(folder, 'tree')
  mkdirSync(join(tree, 'd', `${'long'.repeat(30)}`, `${'name'.repeat(40)}`), { recursive: true })
  writeFileSync(join(tree, 'small'), 'hello')
  writeFileSync(join(tree, 'd', 'empty'), '')
  writeFileSync(join(tree, 'd', `${'long'.repeat(30)}`, `${'name'.repeat(40)}`, 'leaf'.repeat(20)), 'leaf')
  execFileSync('sh', [
    '-c',
    `cd ${tree} && ln small hard && ln -s ${'t'.repeat(150)} slow && ln -s small fast && mkfifo pipe &&
     touch -d '2001-02-03 04:05:06.789' small && touch -d '1960-01-01 00:00:00' d/empty && chmod 4751 small &&
     (truncate -s 3M d/sparse; printf x | dd of=d/sparse bs=1 seek=1000000 conv=notrunc; printf end >> d/sparse
      for i in $(seq 1 40); do printf y | dd of=d/holes bs=1 seek=$((i * 20000)) conv=notrunc; done) 2>/dev/null`,
  ])
  const root = process.getuid?.() === 0
  if (root)
    execFileSync('sh', [
      '-c',
      `cd ${tree} && setfattr -n user.note -v hi small && mknod dev c 5 70000 && chown 70000:3000000 d`,
    ])

  const forms: [string, string[]][] = [
    ['gnu', ['--format=gnu']],
    ['gnu, sparse', ['--format=gnu', '-S']],
    ['pax, xattrs', ['--format=pax', '--xattrs', '--xattrs-include=*']],
    ['pax, sparse 0.0', ['--format=pax', '-S', '--sparse-version=0.0']],
    ['pax, sparse 0.1', ['--format=pax', '-S', '--sparse-version=0.1']],
    ['pax, sparse 1.0', ['--format=pax', '-S', '--sparse-version=1.0', '--xattrs', '--xattrs-include=*']],
  ]
  it.skipIf(noLoopMount).each(forms)('%s: becomes the tree it was made from', async (form, options) => {
    const tar = join(folder, `${files++}.tar`)
    run('tar', [...options, '--numeric-owner', '-C', tree, '-cf', tar, '.'])
    using layered = new LayeredTree()
    await layered.applyTar(tar, tar)
    const image = join(folder, `${files++}.ext4`)
    await writeExt4(image, layered.root, { identity: form })
    checkFileSystem(image)
    const facts = (path: string): string[] =>
      [...describeFolder(path)].map(([at, words]) => {
        let line = `${at} ${words}`
        if (!options.includes('--xattrs')) line = line.replace(/ user\.note=\S*/, '')
        // The GNU format has whole seconds only.
        if (form.startsWith('gnu')) line = line.replace(/mtime (-?\d+)\d{9}\b/, 'mtime $1')
        return line
      })
    expect(withMounted(image, facts)).toEqual(facts(tree))
    rmSync(image)
  })

  it.skipIf(noLoopMount)('a directory becomes the same tree', async () => {
    const image = join(folder, `${files++}.ext4`)
    await writeExt4(image, await treeOfDirectory(tree), { identity: 'dir' })
    checkFileSystem(image)
    expect([...withMounted(image, describeFolder)]).toEqual([...describeFolder(tree)])
    rmSync(image)
    await expect(treeOfDirectory(join(folder, 'nowhere'))).rejects.toMatchObject({ code: 'NOT_FOUND' })
  })

  it('ustar and v7: names, links and times', () => {
    for (const format of ['ustar', 'v7']) {
      const tar = join(folder, `${files++}.tar`)
      run('tar', [`--format=${format}`, '-C', tree, '-cf', tar, './small', './hard', './fast'])
      const fd = openSync(tar, 'r')
      const entries = [...new TarReader(fd, tar)]
      closeSync(fd)
      expect(entries.map(({ path, kind, size }) => [path, kind, size])).toEqual([
        ['./small', 'file', 5],
        ['./hard', 'link', 0],
        ['./fast', 'symlink', 0],
      ])
      expect(entries[0]!.mode).toBe(0o4751)
    }
  })
})

describe('damaged archives', { timeout: 120_000 }, () => {
  it('refuses what is truncated or corrupt with a typed error, whatever the damage', async () => {
    const good = tarOf([
      dir('a'),
      { path: `a/${'n'.repeat(150)}`, data: Buffer.alloc(2000, 7), pax: { mtime: '1.5', 'SCHILY.xattr.user.a': 'b' } },
      link('l', 'a'),
      {
        path: 's',
        data: Buffer.from(`${'1\n0\n3\n'.padEnd(512, '\0')}abc`),
        pax: { 'GNU.sparse.major': '1', 'GNU.sparse.minor': '0', 'GNU.sparse.name': 'sp', 'GNU.sparse.realsize': '10' },
      },
      file('z', 700),
    ])
    let refused = 0
    let state = 12345
    const random = (below: number): number => {
      state = (Math.imul(state, 1103515245) + 12345) >>> 0
      return state % below
    }
    const path = join(folder, 'fuzz.tar')
    for (let round = 0; round < 1500; round++) {
      const bytes = Buffer.from(good)
      for (let i = random(4); i >= 0; i--) {
        const at = random(bytes.length)
        bytes[at] = random(3) === 0 ? random(256) : bytes[at]! ^ (1 << random(8))
        // Half of the time the checksum is made right again, so that damage gets further.
        if (random(2) === 0) fixChecksum(bytes, at - (at % 512))
      }
      writeFileSync(path, random(3) === 0 ? bytes.subarray(0, random(bytes.length)) : bytes)
      using tree = new LayeredTree()
      try {
        await tree.applyTar(path, 'fuzz')
      } catch (error) {
        refused++
        expect(error).toMatchObject({ name: 'ImageError' })
      }
    }
    expect(refused).toBeGreaterThan(100)
    expect(readFileSync(path).length).toBeGreaterThan(0)
  })

  it('says that a truncated archive is truncated', async () => {
    const whole = tarOf([file('a', 5000)])
    using tree = new LayeredTree()
    await expect(tree.applyTar(save(whole.subarray(0, 3000)), 'cut')).rejects.toMatchObject({
      code: 'BAD_TAR',
      message: expect.stringContaining('truncated'),
    })
  })
})

function fixChecksum(bytes: Buffer, at: number): void {
  if (at + 512 > bytes.length) return
  bytes.fill(32, at + 148, at + 156)
  let sum = 0
  for (let i = at; i < at + 512; i++) sum += bytes[i]!
  bytes.write(`${sum.toString(8).padStart(6, '0')}\0 `, at + 148, 'latin1')
}
