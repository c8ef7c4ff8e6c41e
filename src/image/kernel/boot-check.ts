/** Whether a kernel boots: to our init, with the console in both directions, and off again. */
import { Machine } from '../../machine/machine.ts'
import { describeExit, type MachineExit } from '../../machine/machine-events.ts'
import { buildInitramfs } from '../initramfs.ts'
import { KernelError } from './errors.ts'

const MEMORY_MIB = 256
/** Without `quiet`, so that a kernel that stops says how far it came. */
const COMMAND_LINE = 'console=ttyS0 panic=-1 vitrine.mode=echo'
const READY = 'vitrine-init: ready'
/** A kernel prints all the time while it boots; on the software CPU of a busy machine with pauses of some seconds. */
const SILENCE_LIMIT_MS = 60_000
const LAST_WORDS = 1500

export interface BootCheck {
  readonly accelerator: string
  /** From entering the kernel to our init. */
  readonly milliseconds: number
}

/** Boots `kernel` once, on the accelerator that machines use here; throws with its last words when it does not come up. */
export async function checkKernelBoots(kernel: string, signal?: AbortSignal): Promise<BootCheck> {
  const machine = await Machine.create({
    kernel: { path: kernel },
    initrd: buildInitramfs(),
    cmdline: COMMAND_LINE,
    memoryMib: MEMORY_MIB,
  })
  const { accelerator } = machine
  const stop = (): void => void machine.stop()
  signal?.addEventListener('abort', stop)
  // Whoever is silent for too long is stopped, which is one of the ways to end.
  const timer = setTimeout(stop, SILENCE_LIMIT_MS)
  let text = ''
  let readyAt = 0
  machine.on('console', data => {
    timer.refresh()
    text += Buffer.from(data).toString('latin1')
    if (readyAt > 0 || !text.includes(READY)) return
    readyAt = performance.now()
    void machine.console.write('poweroff\n')
  })
  try {
    const began = performance.now()
    machine.start()
    const exit = await machine.ended()
    signal?.throwIfAborted()
    if (exit.reason === 'power-off' && readyAt > 0) return { accelerator, milliseconds: Math.round(readyAt - began) }
    const words = text.slice(-LAST_WORDS).trim() || 'nothing'
    throw new KernelError(
      'BUILD',
      `the kernel ${kernel} does not boot on ${accelerator}: ${reasonOf(exit)}. Debian's stays in use. Its last words: ${words}`,
    )
  } finally {
    clearTimeout(timer)
    signal?.removeEventListener('abort', stop)
    await machine.close()
  }
}

function reasonOf(exit: MachineExit): string {
  return exit.reason === 'killed' ? `it was silent for ${SILENCE_LIMIT_MS / 1000} s` : describeExit(exit)
}
