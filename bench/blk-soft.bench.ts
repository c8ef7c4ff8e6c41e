/** As bench/blk, with the guest on a software CPU: ours against QEMU's TCG. The processor decides more than the disk here. */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { CELLS, diskBytes } from './blk/cells.ts'
import { diskScript, hostTscKhz, ourCommand, prepareGuest, qemuCommand } from './blk/guest.ts'
import { LoadedGuest } from './blk/loaded-guest.ts'
import type { Bench, BenchContext, Benchmark } from './harness/benchmark.ts'

async function open(context: BenchContext): Promise<Bench> {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-bench-blk-'))
  const guests: LoadedGuest[] = []
  const close = async (): Promise<void> => {
    for (const guest of guests) guest.end()
    rmSync(folder, { recursive: true, force: true })
  }
  try {
    const guest = await prepareGuest(folder, context.log)
    execFileSync('sh', ['-c', diskScript(folder, ['ours', 'qemu'], diskBytes(context.runs + 1))])
    guests.push(await LoadedGuest.boot(ourCommand(guest, folder, 'ours', 'soft'), context.log))
    guests.push(await LoadedGuest.boot(qemuCommand(guest, folder, 'qemu', 'tcg', hostTscKhz(folder)), context.log))
    return {
      contestants: [
        { name: 'ours', sample: () => guests[0]!.sample() },
        { name: 'qemu', sample: () => guests[1]!.sample() },
      ],
      host: { accelerator: 'ours: software CPU, QEMU: TCG', cache: 'writeback' },
      close,
    }
  } catch (error) {
    await close()
    throw error
  }
}

export const benchmark: Benchmark = {
  summary: 'virtio-blk on the software CPU: raw, QCOW2, QCOW2 over a backing file; against QEMU TCG',
  metrics: CELLS.map(cell => cell.metric),
  runs: 3,
  open,
}
