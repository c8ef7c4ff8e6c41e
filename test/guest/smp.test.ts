/**
 * Two vCPUs of the software CPU under a parallel load: processes that compute, pipe, fork and die at once, on Debian's kernel. What they
 * compute is compared with the same script on this machine.
 */
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { expect, it } from 'vitest'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import { ConsoleText } from '../boot/console-text.ts'

const BUSYBOX = '/bin/busybox'
/** VITRINE_SMP_ROUNDS for more of it. */
const ROUNDS = Number(process.env.VITRINE_SMP_ROUNDS ?? 2)

/** Eight jobs at a time: hashes, compression, sorting, pipes, and processes that come and go. */
const WORK = `mkdir -p /tmp/smp; cd /tmp/smp
for round in $(busybox seq ${ROUNDS}); do
for job in 1 2 3 4; do
( busybox seq $job 3000 | busybox sha256sum > sum$job; busybox seq 1 4000 | busybox gzip | busybox gunzip | busybox md5sum > zip$job ) &
( i=0; while [ $i -lt 25 ]; do i=$((i + 1)); busybox echo $((i * job)); done | busybox sort -n | busybox md5sum > forks$job ) &
done
wait; busybox cat sum* zip* forks* | busybox sha256sum
done`

it.skipIf(!existsSync(BUSYBOX))(
  'two vCPUs compute under load what one processor does',
  { timeout: 600_000 },
  async () => {
    const expected = spawnSync(BUSYBOX, ['sh', '-c', `${WORK}; busybox rm -r /tmp/smp`], {
      encoding: 'utf8',
    }).stdout.trim()
    expect(expected.split('\n')).toHaveLength(ROUNDS)
    const found = await findKernel()
    const script = new TextEncoder().encode(
      `${WORK}\necho CPUS $(busybox nproc)\nbusybox grep -E 'LOC|CAL|TLB' /proc/interrupts\n`,
    )
    const machine = await Machine.create({
      kernel: { path: found.path, immutable: true },
      initrd: buildInitramfs({ modules: found.modules, busybox: BUSYBOX, files: { '/work.sh': { content: script } } }),
      cmdline: 'console=ttyS0 quiet panic=-1 vitrine.exec="sh /work.sh"',
      memoryMib: 256,
      cpus: 2,
      accel: 'soft',
    })
    const text = new ConsoleText(machine)
    try {
      machine.start()
      expect(await text.end(500_000)).toEqual({ reason: 'power-off' })
      const lines = text.all.split(/\r?\n/)
      expect(lines.filter(line => /^[0-9a-f]{64} /.test(line))).toEqual(expected.split('\n'))
      expect(text.all).toContain('CPUS 2')
      // Both took timer interrupts, and each interrupted the other.
      for (const name of ['LOC', 'CAL']) {
        const row = new RegExp(`${name}: +(\\d+) +(\\d+)`).exec(text.all)
        // What the guest said, if it is not that.
        expect(row, text.all).not.toBeNull()
        const [, first, second] = row!
        expect(Number(first)).toBeGreaterThan(0)
        expect(Number(second)).toBeGreaterThan(0)
      }
      expect(text.all).not.toMatch(/BUG|Oops|soft lockup|rcu.*stall/)
      const { vcpus } = await machine.metrics()
      for (const { instructions } of vcpus) expect(instructions).toBeGreaterThan(50_000_000)
    } finally {
      await machine.close()
    }
  },
)
