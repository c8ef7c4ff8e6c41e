/**
 * virtio-blk with a Linux guest on KVM, ours against QEMU's microvm: the same kernel, initramfs, memory and load, on disks
 * of the same shape in the same tmpfs. All run in one boot of the emulated AMD host, each in a guest that stays up, and
 * are sampled in turn, so only the ratios mean something. QEMU has `cache=writeback`, as we do: the host's page cache is
 * used, flushes are honoured, and no load flushes.
 */
import { AmdHost } from '../../test/testbed/amd-host.ts'
import type { Bench, BenchContext, Benchmark } from '../harness/benchmark.ts'
import { CELLS, diskBytes } from './cells.ts'
import { diskScript, ourCommand, prepareGuest, qemuCommand } from './guest.ts'
import { HostedGuest } from './hosted-guest.ts'

const DISKS = '/run/vitrine-bench-blk'
const HOST_MIB = 6144
/** A load takes 400 ms, and V8 needs seconds of the slow host's time until its code is what it will be. */
const WARM_UP = 3

async function open(context: BenchContext): Promise<Bench> {
  const host = await AmdHost.start({ log: context.log, memoryMiB: HOST_MIB })
  try {
    const guest = await prepareGuest(host.share, context.log)
    const script = diskScript(DISKS, ['ours', 'qemu'], diskBytes(context.runs + WARM_UP))
    const mount = `mkdir -p ${DISKS} && mount -t tmpfs -o size=90% none ${DISKS}`
    const made = await host.run(['sh', '-c', `${mount} && ${script}`], { timeoutMs: 240_000 })
    if (made.status !== 0) throw new Error(`the disks could not be made: ${made.stderr}`)
    context.log('booting the guests')
    const ours = await HostedGuest.boot(host, DISKS, 'ours', ourCommand(guest, DISKS, 'ours', 'kvm'))
    const qemu = await HostedGuest.boot(host, DISKS, 'qemu', qemuCommand(guest, DISKS, 'qemu', 'kvm'))
    return {
      contestants: [
        { name: 'ours', sample: () => ours.sample() },
        { name: 'qemu', sample: () => qemu.sample() },
      ],
      host: { testbed: 'emulated AMD host', accelerator: 'KVM', cache: 'writeback', storage: 'tmpfs' },
      close: () => host.stop(),
    }
  } catch (error) {
    await host.stop()
    throw error
  }
}

export const benchmark: Benchmark = {
  summary: 'virtio-blk on KVM: raw, QCOW2, QCOW2 over a backing file; against QEMU microvm, in the emulated AMD host',
  metrics: CELLS.map(cell => cell.metric),
  runs: 8,
  warmup: WARM_UP,
  open,
}
