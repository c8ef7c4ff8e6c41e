/** The guest that every contestant boots, its disks, and the command lines that start it. */
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { DISKS } from './cells.ts'

const GUEST_MIB = 256
const BUSYBOX = '/bin/busybox'
const COMMAND_LINE = 'console=ttyS0 quiet panic=-1 random.trust_cpu=on'
const INIT = `#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev; /bin/busybox mount -t sysfs sys /sys
for m in $(/bin/busybox cat /lib/modules/load-order); do /bin/busybox insmod $m; done
for d in vda vdb vdc; do
  while [ ! -b /dev/$d ]; do /bin/busybox sleep 0.1; done
  echo none > /sys/block/$d/queue/scheduler
done
exec /bin/load < /dev/ttyS0 > /dev/ttyS0
`

export interface Guest {
  readonly kernel: string
  readonly initrd: string
}

/** Puts what is booted into `folder`. */
export async function prepareGuest(folder: string, log: (message: string) => void): Promise<Guest> {
  const { path, modules } = await findKernel({ progress: log, tuned: false })
  const program = join(folder, 'load')
  execFileSync('gcc', ['-static', '-O2', '-s', '-o', program, fileURLToPath(new URL('load.c', import.meta.url))])
  const initrd = join(folder, 'initrd')
  const options = {
    modules,
    load: ['virtio_mmio', 'virtio_blk'],
    init: new TextEncoder().encode(INIT),
    busybox: BUSYBOX,
    files: { 'bin/load': { content: readFileSync(program), mode: 0o755 } },
  }
  writeFileSync(initrd, buildInitramfs(options))
  return { kernel: path, initrd }
}

/** The speed of this machine's time-stamp counter in kHz. */
export function hostTscKhz(folder: string): number {
  const program = join(folder, 'tsc')
  execFileSync('gcc', ['-O2', '-o', program, fileURLToPath(new URL('tsc.c', import.meta.url))])
  return Number(execFileSync(program, { encoding: 'utf8' }))
}

/** A shell script that makes the disks of each contestant in `folder`; the base image is everybody's, and only read. */
export function diskScript(folder: string, contestants: readonly string[], bytes: number): string {
  const at = (name: string): string => join(folder, name)
  // Not zeros, which storage below might treat in a way of its own.
  const noise = (file: string): string => `yes 'a line of the base image' | head -c ${bytes} > ${file}`
  const lines = ['set -e', noise(at('base.img'))]
  for (const name of contestants) {
    lines.push(
      `cp ${at('base.img')} ${at(`${name}-raw.img`)}`,
      `qemu-img create -q -f qcow2 ${at(`${name}-qcow2.qcow2`)} ${bytes}`,
      `qemu-img create -q -f qcow2 -b ${at('base.img')} -F raw ${at(`${name}-overlay.qcow2`)}`,
    )
  }
  return lines.join('\n')
}

const diskPath = (folder: string, contestant: string, disk: string): string =>
  join(folder, `${contestant}-${disk}.${disk === 'raw' ? 'img' : 'qcow2'}`)

export function ourCommand({ kernel, initrd }: Guest, folder: string, name: string, accel: 'kvm' | 'soft'): string[] {
  const disks = DISKS.flatMap(disk => ['--disk', diskPath(folder, name, disk)])
  return [
    ...[process.execPath, assetPath('cli.js'), 'boot', '--accel', accel, '--memory', String(GUEST_MIB), ...disks],
    ...['--kernel', kernel, '--initrd', initrd, '--cmdline', COMMAND_LINE],
  ]
}

/**
 * On KVM each disk is in an I/O thread of its own, as each of ours has a worker; TCG cannot have that. Both sides use the
 * host's page cache and honour flushes.
 */
export function qemuCommand(
  { kernel, initrd }: Guest,
  folder: string,
  name: string,
  accel: 'kvm' | 'tcg',
  tscKhz = 0,
  aio: 'threads' | 'io_uring' = 'threads',
): string[] {
  const disks = DISKS.flatMap(disk => [
    ...(accel === 'kvm' ? ['-object', `iothread,id=thread-${disk}`] : []),
    '-drive',
    `id=${disk},file=${diskPath(folder, name, disk)},format=${disk === 'raw' ? 'raw' : 'qcow2'},if=none,cache=writeback,aio=${aio},discard=unmap`,
    ...['-device', `virtio-blk-device,drive=${disk}${accel === 'kvm' ? `,iothread=thread-${disk}` : ''}`],
  ])
  return [
    ...['qemu-system-x86_64', '-M', 'microvm', '-accel', accel, ...(accel === 'kvm' ? ['-cpu', 'host'] : [])],
    ...[
      '-m',
      String(GUEST_MIB),
      '-nodefaults',
      '-no-user-config',
      '-display',
      'none',
      '-serial',
      'stdio',
      '-no-reboot',
    ],
    ...['-global', 'virtio-mmio.force-legacy=false', ...disks, '-kernel', kernel, '-initrd', initrd],
    // QEMU's microvm gives the kernel nothing to measure the TSC by but the PIT, which fails on a busy host: it is told.
    ...['-append', accel === 'tcg' ? `tsc_early_khz=${tscKhz} tsc=reliable ${COMMAND_LINE}` : COMMAND_LINE],
  ]
}
