/** Our file system grown while it is mounted, by Debian's kernel in QEMU: what the agent does when a box's disk is larger than its image. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { CpioWriter } from '../../src/image/cpio.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { ensureDebianKernel } from '../../src/image/kernel/debian.ts'
import { ModuleIndex, readModule } from '../../src/image/kernel/modules.ts'
import { ImageStore } from '../../src/image/store.ts'
import { checkFileSystem, debugfs, has, run } from './oracles.ts'

const missing = ['qemu-system-x86_64', 'gcc', 'busybox'].filter(tool => !has(tool))
const reason = missing.length > 0 && `not installed: ${missing.join(', ')}`
const QEMU_LIMIT_MS = 150_000

/** EXT4_IOC_RESIZE_FS to the size of the device. */
const GROW = `
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
int main(void) {
  uint64_t blocks = 0;
  if (ioctl(open("/dev/vda", O_RDONLY), BLKGETSIZE64, &blocks)) return 1;
  blocks /= 4096;
  if (ioctl(open("/mnt", O_RDONLY), _IOW('f', 16, uint64_t), &blocks)) { perror("resize"); return 1; }
  printf("grown to %llu\\n", (unsigned long long)blocks);
  return 0;
}`

const INIT = (modules: readonly string[]): string => `#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t devtmpfs d /dev
for m in ${modules.join(' ')}; do $B insmod /m/$m.ko; done
$B mount -t ext4 /dev/vda /mnt && /bin/grow
$B dd if=/dev/zero bs=1M count=4 2>/dev/null | $B tr '\\0' x > /mnt/after
i=0; while [ $i -lt 300 ]; do echo $i > /mnt/etc/a-new-file-with-a-long-name-$i; i=$((i+1)); done
$B dmesg | $B grep -i 'ext4.*\\(error\\|warning\\|resized\\)'
$B umount /mnt && echo finished
$B poweroff -f
`

describe.skipIf(reason)('growing', { timeout: 2 * QEMU_LIMIT_MS + 120_000 }, () => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-grow-'))
  afterAll(() => rmSync(folder, { recursive: true }))

  it('takes the disk it is given, online, and stays clean', async () => {
    const entry = await ensureDebianKernel(kernelsFolder(), () => undefined)
    const archive = new CpioWriter()
    for (const name of ['proc', 'dev', 'mnt']) archive.directory(name)
    archive.file('bin/busybox', readFileSync('/bin/busybox'), 0o755)
    writeFileSync(join(folder, 'grow.c'), GROW)
    run('gcc', ['-static', '-O', '-o', join(folder, 'grow'), join(folder, 'grow.c')])
    archive.file('bin/grow', readFileSync(join(folder, 'grow')), 0o755)
    const modules = new ModuleIndex(join(entry, 'modules')).loadOrder(['virtio_pci', 'virtio_blk'])
    for (const { name, path } of modules) archive.file(`m/${name}.ko`, readModule(path))
    archive.file('init', Buffer.from(INIT(modules.map(({ name }) => name))), 0o755)
    writeFileSync(join(folder, 'initrd'), archive.finish())

    const image = await new ImageStore({ home: join(folder, 'home') }).get('base', { diskBytes: 2 ** 28 })
    const disk = join(folder, 'disk')
    const boot = (): string => {
      rmSync(disk, { force: true })
      run('cp', ['--sparse=always', '--no-preserve=mode', image.disk, disk])
      run('truncate', ['-s', '40G', disk])
      const machine = [
        '-M',
        'q35',
        '-accel',
        'tcg',
        '-cpu',
        'max',
        '-m',
        '512',
        '-nodefaults',
        '-nographic',
        '-no-reboot',
      ]
      const kernel = [
        '-kernel',
        join(entry, 'vmlinux'),
        '-initrd',
        join(folder, 'initrd'),
        '-append',
        'console=ttyS0 quiet panic=-1',
      ]
      const drive = ['-serial', 'stdio', '-drive', `file=${disk},format=raw,if=virtio`]
      const options = { encoding: 'latin1', timeout: QEMU_LIMIT_MS, killSignal: 'SIGKILL' } as const
      return spawnSync('qemu-system-x86_64', [...machine, ...kernel, ...drive], options).stdout
    }
    let output = boot()
    // An emulated machine on a busy host may not come up in time; it is given one more chance.
    if (!output.includes('finished')) output = boot()
    expect(output).toContain('grown to 10485760')
    expect(output).toContain('resized filesystem to 10485760')
    expect(output).toContain('finished')
    expect(output).not.toMatch(/EXT4-fs (?:error|warning)/i)
    expect(checkFileSystem(disk)).toContain('/10485760 blocks')
    expect(debugfs(disk, 'cat /etc/a-new-file-with-a-long-name-299')).toBe('299\n')
    expect(debugfs(disk, 'stat /etc')).toContain('Flags: 0x81000')
  })
})
