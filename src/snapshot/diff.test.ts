/** Files that differ between snapshots, on a disk that Linux has mounted and writes to. */
import { copyFileSync, mkdirSync, rmdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { noLoopMount, run } from '../../test/image/oracles.ts'
import { diffSnapshots } from './diff.ts'
import { copyChanges } from './testing/copy-changes.ts'
import { MIB, TestHome } from './testing/home.ts'

const home = new TestHome()
afterAll(() => home.remove())

describe.skipIf(noLoopMount)('a difference', () => {
  it('is found from snapshot to snapshot, and from the image', async () => {
    const { store } = home
    rmSync(home.base)
    run('sh', [
      '-c',
      `mkdir -p ${home.path}/root/etc && cd ${home.path}/root && echo a > etc/a && echo b > etc/b && head -c 1000000 /dev/urandom > etc/big`,
    ])
    run('mke2fs', ['-q', '-t', 'ext4', '-b', '4096', '-d', join(home.path, 'root'), home.base, '16M'])
    const box = home.box()
    const plain = join(home.path, 'plain.img')
    const mount = join(home.path, 'mount')
    copyFileSync(home.base, plain)
    mkdirSync(mount)
    /** What a guest would do: change files on the mounted disk, which is not unmounted when the snapshot is taken. */
    const work = (commands: string): void => {
      run('mount', ['-o', 'loop', plain, mount])
      try {
        run('sh', ['-c', `cd ${mount} && ${commands} && sync -f .`])
        copyChanges(plain, box.disk, [store.layersFolder, join(home.path, 'images/disks')], 16 * MIB)
      } finally {
        run('umount', [mount])
      }
    }
    work('echo c > etc/c && echo changed > etc/a')
    const first = await box.diskSnapshot('first')
    work('rm etc/b && chmod 600 etc/a && mkdir srv && echo x > srv/x')
    const second = await box.diskSnapshot('second')
    const say = async (...args: [Parameters<typeof diffSnapshots>[1], Parameters<typeof diffSnapshots>[2]]) =>
      (await diffSnapshots(store, ...args)).map(({ kind, path, what }) => `${kind} ${path} ${what ?? ''}`.trim())
    expect(await say(null, first)).toEqual(['changed /etc/a content', 'added /etc/c'])
    expect(await say(first, second)).toEqual(['changed /etc/a mode', 'removed /etc/b', 'added /srv', 'added /srv/x'])
    expect(await say(second, first)).toEqual(['changed /etc/a mode', 'added /etc/b', 'removed /srv', 'removed /srv/x'])
    expect(await say(first, first)).toEqual([])
    rmdirSync(mount)
  })
})
