/**
 * The VMM is killed while its guest writes files, again and again, on one QCOW2 disk with ext4. After each kill: the image
 * is sound to qemu-img, the file system is clean to e2fsck once its journal is replayed, and every file whose fsync had
 * returned in the guest is there, whole.
 */
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { assetPath } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'

const DISK_MIB = 512
const BOOT_MS = 120_000

/** Few modules and few programs: this guest is booted again and again. */
const INIT = `#!/bin/busybox sh
export PATH=/bin
for p in insmod mkdir yes fstrim rm; do /bin/busybox ln -s busybox /bin/$p; done
mkdir /mnt; mount -t devtmpfs dev /dev; mount -t proc proc /proc
for m in $(cat /lib/modules/load-order); do insmod $m; done
R=$(sed 's/.*round=\\([0-9]*\\).*/\\1/' /proc/cmdline)
mount -t ext4 /dev/vda /mnt || echo MOUNT-FAILED
mkdir /mnt/r$R
( while :; do dd if=/dev/zero of=/mnt/noise bs=64k count=48 2>/dev/null; rm /mnt/noise; fstrim /mnt; done ) &
i=0
while :; do
  i=$((i + 1))
  yes "round $R file $i" | head -c $((i * 997 % 50000 + 1)) | dd of=/mnt/r$R/$i bs=64k conv=fsync 2>/dev/null &&
    echo "FLUSHED $i"
done`

/** What the guest's pipeline puts into a file. */
function contentOf(round: number, file: number): string {
  const line = `round ${round} file ${file}\n`
  const length = ((file * 997) % 50_000) + 1
  return line.repeat(Math.ceil(length / line.length)).slice(0, length)
}

export interface KillResult {
  readonly round: number
  /** Files that the guest said were flushed, all of them found. */
  readonly flushed: number
}

export interface KillOptions {
  readonly folder: string
  readonly rounds: number
  readonly accel: string
  readonly onRound?: (result: KillResult) => void
}

/** Throws at the first thing that is not as it must be. */
export async function killRounds({ folder, rounds, accel, onRound }: KillOptions): Promise<KillResult[]> {
  const disk = join(folder, 'killed.qcow2')
  const raw = join(folder, 'killed.img')
  const initrd = join(folder, 'initrd')
  execFileSync('truncate', ['-s', `${DISK_MIB}M`, raw])
  execFileSync('mke2fs', ['-q', '-t', 'ext4', raw])
  execFileSync('qemu-img', ['convert', '-f', 'raw', '-O', 'qcow2', raw, disk])
  const kernel = await findKernel()
  const init = new TextEncoder().encode(INIT)
  const load = ['virtio_mmio', 'virtio_blk', 'ext4']
  writeFileSync(initrd, buildInitramfs({ modules: kernel.modules, load, init, busybox: '/bin/busybox' }))
  const results: KillResult[] = []
  for (let round = 1; round <= rounds; round++) {
    const cmdline = `console=ttyS0 panic=-1 quiet random.trust_cpu=on round=${round}`
    const flushed = await runAndKill(
      [
        ...['boot', '--accel', accel, '--memory', '96', '--disk', disk, '--kernel', kernel.path, '--initrd', initrd],
        ...['--cmdline', cmdline],
      ],
      round,
    )
    results.push({ round, flushed })
    judge(disk, raw, folder, results)
    onRound?.({ round, flushed })
  }
  return results
}

/** Kills the VMM some time after the guest's first fsync; the last file that was flushed before the end. */
async function runAndKill(args: readonly string[], round: number): Promise<number> {
  const child = spawn(process.execPath, [assetPath('cli.js'), ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  let stderr = ''
  child.stdout.on('data', (bytes: Buffer) => {
    output += bytes.toString('latin1')
  })
  child.stderr.on('data', (bytes: Buffer) => {
    stderr += bytes.toString('latin1')
  })
  const closed = new Promise<void>(resolve => child.on('close', () => resolve()))
  const last = (): number => Number(/FLUSHED (\d+)\r?\n(?![\s\S]*FLUSHED \d+\r?\n)/.exec(output)?.[1] ?? 0)
  try {
    const end = Date.now() + BOOT_MS
    while (last() === 0) {
      if (Date.now() > end || child.exitCode !== null || output.includes('MOUNT-FAILED')) {
        throw new Error(`round ${round}: the guest flushed nothing:\n${output.slice(-3000)}\n${stderr}`)
      }
      await sleep(20)
    }
    await sleep(200 + Math.random() * 2500)
  } finally {
    child.kill('SIGKILL')
  }
  await closed
  if (stderr !== '') throw new Error(`round ${round}: the VMM reported: ${stderr}`)
  return last()
}

function judge(disk: string, raw: string, folder: string, results: readonly KillResult[]): void {
  const { round, flushed } = results.at(-1)!
  const check = spawnSync('qemu-img', ['check', '-f', 'qcow2', disk], { encoding: 'utf8' })
  // 3: leaked clusters and nothing worse.
  if (check.status !== 0 && check.status !== 3) throw new Error(`round ${round}: ${check.stdout}${check.stderr}`)
  execFileSync('qemu-img', ['convert', '-f', 'qcow2', '-O', 'raw', disk, raw])
  // The journal is replayed, as a mount would; 1 says that it was.
  const replay = spawnSync('e2fsck', ['-p', raw], { encoding: 'utf8' })
  if (replay.status !== 0 && replay.status !== 1) throw new Error(`round ${round}: e2fsck -p: ${replay.stdout}`)
  const clean = spawnSync('e2fsck', ['-fn', raw], { encoding: 'utf8' })
  if (clean.status !== 0) throw new Error(`round ${round}: e2fsck -fn: ${clean.stdout}`)
  const files = join(folder, 'files')
  rmSync(files, { recursive: true, force: true })
  execFileSync('mkdir', [files])
  // Of the rounds before, all are looked at every tenth time; what was whole once is in nobody's way after.
  const rounds = round % 10 === 0 ? results : [results.at(-1)!]
  for (const each of rounds) {
    execFileSync('debugfs', ['-R', `rdump /r${each.round} ${files}`, raw], { stdio: 'pipe' })
    for (let file = 1; file <= each.flushed; file++) {
      const content = readFileSync(join(files, `r${each.round}`, String(file)), 'latin1')
      if (content !== contentOf(each.round, file)) {
        throw new Error(`round ${round}: file ${file} of round ${each.round} was flushed and is not what it was`)
      }
    }
  }
  if (flushed === 0) throw new Error(`round ${round}: nothing was flushed`)
}
