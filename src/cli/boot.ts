/** `vitrine boot`: a kernel, with its console on this terminal. */
import { existsSync, readFileSync } from 'node:fs'
import type { AcceleratorName, SoftOptions } from '../accel/contract.ts'
import { assetUrl } from '../host/assets.ts'
import { buildInitramfs } from '../image/initramfs.ts'
import { findKernel } from '../image/kernel/find.ts'
import { Machine } from '../machine/machine.ts'
import { describeExit, formatDump, type MachineExit } from '../machine/machine-events.ts'
import { hashMachine } from '../machine/machine-hash.ts'
import type { MachineOptions } from '../machine/machine-options.ts'
import type { DiskDescription } from '../virtio/worker/descriptions.ts'
import { DeviceWorker } from '../virtio/worker/device-worker.ts'
import { HostedDevice } from '../virtio/worker/hosted-device.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { ProgressLine } from './output.ts'
import { attachTerminal } from './terminal.ts'

const TIERS = ['auto', 'interpreter', 'compiler', 'lockstep'] as const
const ACCELERATORS = ['auto', 'kvm', 'hvf', 'soft']
const BUSYBOX = '/bin/busybox'
const NEW_LINE = 0x0a

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
    disk: {
      type: 'string',
      short: 'd',
      multiple: true,
      value: 'FILE',
      help: 'A disk (virtio-blk): FILE[,raw|qcow2][,ro]; raw unless the name ends in .qcow2. May be given again.',
    },
    accel: { type: 'string', value: 'NAME', help: 'auto, kvm or soft (auto: the best that works here).' },
    protocol: { type: 'string', value: 'NAME', help: 'How the kernel is entered: pvh or linux64 (pvh if it can).' },
    'exit-on-reboot': {
      type: 'boolean',
      help: 'End with status 10 when the guest restarts; it is started again otherwise.',
    },
    deterministic: {
      type: 'boolean',
      help: 'Software CPU: time comes from retired instructions, so that runs repeat exactly; --json adds a hash of the end.',
    },
    tier: {
      type: 'string',
      value: 'NAME',
      help: 'Software CPU: auto, interpreter, compiler (compile at first sight), or lockstep: both, until they differ.',
    },
    trace: {
      type: 'string',
      value: 'WHAT',
      help: 'Software CPU: tell all instructions or exits on standard error.',
    },
    stats: { type: 'boolean', help: 'Say at the end how long it took and what the guest did.' },
    json: { ...JSON_OPTION, help: 'Print how it ended as JSON: the last line, after what the console said.' },
  },
  examples: [
    'vitrine boot',
    `vitrine boot --cpus 2 --append 'vitrine.exec="nproc; uname -a"'`,
    'vitrine boot --kernel ./vmlinux --initrd ./initrd.img --memory 1G --disk ./root.qcow2 --disk ./data.img,raw,ro',
    `vitrine boot --accel soft --trace exits --append quiet 2>exits.txt`,
    'vitrine boot --accel soft --tier lockstep',
    `vitrine boot --json --append 'quiet vitrine.exec="uname -a"' | tail -n 1 | jq .reason`,
    '',
    'Exit status: 0 the guest powered off, 10 restarted, 11 triple fault, 12 the accelerator could not go on, 130 ended here.',
  ],
  run: boot,
}

async function boot(args: ParsedArgs): Promise<number> {
  args.atMost(0)
  const disks = args.all('disk').map(diskOf)
  const options = await machineOptions(args)
  for (;;) {
    const { exit, line } = await runOnce(options, disks, args.flag('stats'))
    if (exit.reason === 'reboot' && !args.flag('exit-on-reboot')) continue
    if (args.flag('json')) process.stdout.write(line)
    if (exit.reason === 'triple-fault' || exit.reason === 'internal-error') {
      process.stderr.write(`vitrine: ${describeExit(exit)}\n`)
      if (exit.dump) process.stderr.write(`${formatDump(exit.dump)}\n`)
    }
    return STATUS[exit.reason]
  }
}

interface Ended {
  readonly exit: MachineExit
  /** All of it for a script, as one line of JSON. */
  readonly line: string
}

/** A disk has a worker of its own: it is busy when it is used at all. */
function hostDisk(disk: DiskDescription): HostedDevice {
  const worker = new DeviceWorker(assetUrl('device.worker.cjs'), ({ message, times }) =>
    process.stderr.write(`vitrine: ${disk.path}: ${message}${times > 1 ? ` (${times} times)` : ''}\r\n`),
  )
  return new HostedDevice(worker, { kind: 'blk', disk })
}

async function runOnce(options: MachineOptions, disks: readonly DiskDescription[], stats: boolean): Promise<Ended> {
  const began = performance.now()
  const machine = await Machine.create({ ...options, devices: disks.map(hostDisk) })
  const created = performance.now()
  let lastByte = NEW_LINE
  machine.on('console', data => {
    lastByte = data.at(-1) ?? lastByte
  })
  const terminal = attachTerminal(machine, () => void machine.stop())
  const end = (): void => void machine.stop()
  process.on('SIGTERM', end)
  process.on('SIGHUP', end)
  if (!process.stdin.isTTY) process.on('SIGINT', end)
  try {
    machine.start()
    const exit = await machine.ended()
    const madeMs = Math.round(created - began)
    const ranMs = Math.round(performance.now() - created)
    const { vcpus, legacy, console } = await machine.metrics()
    const { accelerator } = machine
    const hash = options.soft?.deterministic ? { hash: await hashMachine(machine) } : {}
    if (stats) {
      const counters = JSON.stringify({ vcpus, legacy, console })
      process.stderr.write(`\n${accelerator}: made in ${madeMs} ms, ran for ${ranMs} ms; ${counters}\n`)
    }
    const told = { ...exitForScripts(exit), status: STATUS[exit.reason], accelerator, madeMs, ranMs, ...hash }
    const line = `${lastByte === NEW_LINE ? '' : '\n'}${JSON.stringify({ ...told, vcpus, legacy, console })}\n`
    return { exit, line }
  } finally {
    terminal.detach()
    for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) process.off(signal, end)
    await machine.close()
  }
}

/** Without the registers' 64-bit numbers, which JSON does not have: those are text. */
function exitForScripts(exit: MachineExit): Record<string, unknown> {
  if (exit.reason !== 'triple-fault' && exit.reason !== 'internal-error') return { reason: exit.reason }
  const { reason, cpu, dump } = exit
  return { reason, cpu, message: describeExit(exit), ...(dump ? { registers: formatDump(dump).split('\n') } : {}) }
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
  const tier = tierOf(args.text('tier'))
  const deterministic = args.flag('deterministic')
  if (accel === 'kvm' && (tier || trace || deterministic)) {
    throw new UsageError('--tier, --trace and --deterministic are of the software CPU: give --accel soft')
  }
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
    // These ask for the software CPU, also where there is a better one.
    accel: (tier || trace || deterministic ? 'soft' : accel) as AcceleratorName | 'auto',
    soft: { deterministic, ...(trace ? { trace } : {}), ...(tier ? { tier } : {}) },
  }
}

function tierOf(text: string | undefined): SoftOptions['tier'] {
  const tier = TIERS.find(name => name === text)
  if (text !== undefined && tier === undefined) {
    throw new UsageError(`--tier takes one of ${TIERS.join(', ')}, not '${text}'`)
  }
  return tier
}

/** `FILE[,raw|qcow2][,ro]`. What a file holds is never looked at: a guest could write anything there. */
function diskOf(text: string): DiskDescription {
  const [path = '', ...words] = text.split(',')
  let format: DiskDescription['format'] = path.endsWith('.qcow2') ? 'qcow2' : 'raw'
  let readOnly = false
  for (const word of words) {
    if (word === 'raw' || word === 'qcow2') format = word
    else if (word === 'ro') readOnly = true
    else throw new UsageError(`--disk takes FILE[,raw|qcow2][,ro], and '${word}' is none of these`)
  }
  if (!existsSync(path)) throw new UsageError(`the disk ${path} cannot be read: there is no such file`)
  return { path, format, readOnly }
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
