/** `vitrine boot`: a kernel, with its console on this terminal. */
import { existsSync, readFileSync } from 'node:fs'
import type { AcceleratorName } from '../accel/contract.ts'
import { buildInitramfs } from '../image/initramfs.ts'
import { findKernel } from '../image/kernel/find.ts'
import { Machine } from '../machine/machine.ts'
import { describeExit, formatDump, type MachineExit } from '../machine/machine-events.ts'
import type { MachineOptions } from '../machine/machine-options.ts'
import { type Command, type ParsedArgs, UsageError } from './command.ts'
import { ProgressLine } from './output.ts'
import { attachTerminal } from './terminal.ts'

const ACCELERATORS = ['auto', 'kvm', 'hvf', 'soft']
const BUSYBOX = '/bin/busybox'

/** The exit status of each end; the help lists them. */
const STATUS: Record<MachineExit['reason'], number> = {
  'power-off': 0,
  reboot: 10,
  'triple-fault': 11,
  'internal-error': 12,
  halted: 13,
  killed: 130,
}

export const bootCommand: Command = {
  name: 'boot',
  summary: 'Boot a kernel with its console on this terminal (Ctrl-] ends it).',
  usage: '[OPTIONS]',
  options: {
    kernel: {
      type: 'string',
      short: 'k',
      value: 'FILE',
      help: "A vmlinux or bzImage; Debian's or the tuned one unless given.",
    },
    initrd: {
      type: 'string',
      short: 'i',
      value: 'FILE',
      help: 'An initial RAM disk; our own unless a kernel is given.',
    },
    cmdline: {
      type: 'string',
      short: 'c',
      value: 'TEXT',
      help: "The kernel's command line ('console=ttyS0 panic=-1').",
    },
    append: { type: 'string', short: 'a', value: 'TEXT', help: "More for the kernel's command line." },
    cpus: { type: 'string', value: 'N', help: 'How many CPUs (1).' },
    memory: { type: 'string', short: 'm', value: 'SIZE', help: 'Memory: 512, 512M or 2G (256M).' },
    accel: { type: 'string', value: 'NAME', help: 'auto, kvm or soft (auto: the best that works here).' },
    protocol: { type: 'string', value: 'NAME', help: 'How the kernel is entered: pvh or linux64 (pvh if it can).' },
    'exit-on-reboot': {
      type: 'boolean',
      help: 'End with status 10 when the guest restarts; it is started again otherwise.',
    },
    deterministic: {
      type: 'boolean',
      help: 'Software CPU: time comes from retired instructions, so that runs repeat exactly.',
    },
    trace: {
      type: 'string',
      value: 'WHAT',
      help: 'Software CPU: tell all instructions or exits on standard error.',
    },
    stats: { type: 'boolean', help: 'Say at the end how long it took and what the guest did.' },
  },
  examples: [
    'vitrine boot',
    `vitrine boot --cpus 2 --append 'vitrine.exec="nproc; uname -a"'`,
    'vitrine boot --kernel ./vmlinux --initrd ./initrd.img --memory 1G',
    '',
    'Exit status: 0 the guest powered off, 10 restarted, 11 triple fault, 12 the accelerator could not go on, 130 ended here.',
  ],
  run: boot,
}

async function boot(args: ParsedArgs): Promise<number> {
  args.atMost(0)
  const options = await machineOptions(args)
  for (;;) {
    const exit = await runOnce(options, args.flag('stats'))
    if (exit.reason === 'reboot' && !args.flag('exit-on-reboot')) continue
    if (exit.reason === 'triple-fault' || exit.reason === 'internal-error') {
      process.stderr.write(`vitrine: ${describeExit(exit)}\n`)
      if (exit.dump) process.stderr.write(`${formatDump(exit.dump)}\n`)
    }
    return STATUS[exit.reason]
  }
}

async function runOnce(options: MachineOptions, stats: boolean): Promise<MachineExit> {
  const began = performance.now()
  const machine = await Machine.create(options)
  const created = performance.now()
  const terminal = attachTerminal(machine, () => void machine.stop())
  const end = (): void => void machine.stop()
  process.on('SIGTERM', end)
  process.on('SIGHUP', end)
  if (!process.stdin.isTTY) process.on('SIGINT', end)
  try {
    machine.start()
    const exit = await machine.ended()
    if (stats) {
      const ms = (from: number, to: number): string => `${Math.round(to - from)} ms`
      const { vcpus, legacy, console } = await machine.metrics()
      process.stderr.write(
        `\n${machine.accelerator}: made in ${ms(began, created)}, ran for ${ms(created, performance.now())}; ` +
          `${JSON.stringify({ vcpus, legacy, console })}\n`,
      )
    }
    return exit
  } finally {
    terminal.detach()
    for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) process.off(signal, end)
    await machine.close()
  }
}

async function machineOptions(args: ParsedArgs): Promise<MachineOptions> {
  const accel = args.text('accel') ?? process.env.VITRINE_ACCEL ?? 'auto'
  if (!ACCELERATORS.includes(accel)) {
    throw new UsageError(`--accel takes one of ${ACCELERATORS.join(', ')}, not '${accel}'`)
  }
  const protocol = args.text('protocol')
  if (protocol !== undefined && protocol !== 'pvh' && protocol !== 'linux64') {
    throw new UsageError(`--protocol takes pvh or linux64, not '${protocol}'`)
  }
  const trace = args.text('trace')
  if (trace !== undefined && trace !== 'instructions' && trace !== 'exits') {
    throw new UsageError(`--trace takes instructions or exits, not '${trace}'`)
  }
  const deterministic = args.flag('deterministic')
  const cpus = args.number('cpus')
  const memoryMib = args.mebibytes('memory')
  const progress = new ProgressLine()
  const found = await findKernel({ kernel: args.text('kernel'), progress: message => progress.update(message) })
  progress.clear()
  const initrdPath = args.text('initrd')
  const initrd =
    initrdPath !== undefined
      ? readGiven(initrdPath, 'initrd')
      : found.source === 'given'
        ? undefined
        : buildInitramfs({ modules: found.modules, busybox: existsSync(BUSYBOX) ? BUSYBOX : undefined })
  const cmdline = [args.text('cmdline') ?? 'console=ttyS0 panic=-1', args.text('append') ?? ''].join(' ').trim()
  return {
    kernel: { path: found.path, immutable: found.source !== 'given' },
    ...(initrd ? { initrd } : {}),
    cmdline,
    ...(cpus === undefined ? {} : { cpus }),
    ...(memoryMib === undefined ? {} : { memoryMib }),
    ...(protocol === undefined ? {} : { protocol }),
    accel: accel as AcceleratorName | 'auto',
    ...(trace || deterministic ? { soft: { deterministic, ...(trace ? { trace } : {}) } } : {}),
  }
}

function readGiven(path: string, what: string): Uint8Array {
  try {
    return readFileSync(path)
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const why = code === 'ENOENT' ? 'there is no such file' : code === 'EACCES' ? 'you may not read it' : String(code)
    throw new UsageError(`the ${what} ${path} cannot be read: ${why}`)
  }
}
