/**
 * QEMU's way to save a machine: migration to a file, of a guest with the same kernel and memory, as much of it touched. It pauses the guest when
 * little is left, as ours does; that is its downtime. It has no incremental form. Restoring reads the file into a new process.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, rmSync, statSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import type { Sample } from '../harness/benchmark.ts'
import { restoreMetric, saveMetric, TOUCHED_PERCENT } from './parts.ts'
import { fillScript, touchedMib } from './saving.ts'

export const QEMU = '/usr/bin/qemu-system-x86_64'
const LIMIT_MS = 180_000
/** As fast as it can, and a pause like ours. */
const BANDWIDTH = 100 * 2 ** 30
const DOWNTIME_MS = 50

/** A guest that fills memory when it is told how much, and answers whatever else it is told. */
const SCRIPT = `#!/bin/sh
echo @ready
while read command value; do
  case $command in
  fill) ${fillScript('$value')}
    echo @filled ;;
  *) echo @answer ;;
  esac
done
`

export interface QemuGuest {
  readonly kernel: string
  readonly folder: string
  readonly accel: 'tcg' | 'kvm'
}

export const qemuInitramfs = (busybox: string): Uint8Array =>
  buildInitramfs({ busybox, files: { 'bench.sh': { content: new TextEncoder().encode(SCRIPT) } } })

class Qemu {
  readonly #child: ChildProcess
  readonly #monitorPath: string
  #monitor: Socket | undefined
  #console = ''
  #answers = ''

  constructor({ kernel, folder, accel }: QemuGuest, mib: number, incoming?: string) {
    this.#monitorPath = join(folder, 'monitor')
    rmSync(this.#monitorPath, { force: true })
    const machine = accel === 'tcg' ? 'microvm,acpi=off' : 'microvm'
    this.#child = spawn(QEMU, [
      ...['-M', machine, '-accel', accel, '-m', String(mib), '-nodefaults', '-no-user-config', '-no-reboot'],
      ...['-display', 'none', '-serial', 'stdio', '-qmp', `unix:${this.#monitorPath},server=on,wait=off`],
      ...['-kernel', kernel, '-initrd', join(folder, 'initrd')],
      '-append',
      `console=ttyS0 quiet panic=-1 mitigations=off tsc_early_khz=1000000 initcall_blacklist=load_system_certificate_list vitrine.exec="sh /bench.sh"`,
      ...(incoming === undefined ? [] : ['-incoming', incoming]),
    ])
    this.#child.stdout!.on('data', (text: Buffer) => {
      this.#console += text.toString('latin1')
    })
  }

  async says(mark: string): Promise<void> {
    await until(() => this.#console.includes(mark), `QEMU's guest did not say '${mark}': ${this.#console.slice(-300)}`)
    this.#console = ''
  }

  tell(line: string): void {
    this.#child.stdin!.write(`${line}\n`)
  }

  /** One command of QMP; its answer. */
  async ask(execute: string, args: object = {}): Promise<Record<string, unknown>> {
    if (!this.#monitor) {
      await until(() => existsSync(this.#monitorPath), 'QEMU has no monitor')
      this.#monitor = connect(this.#monitorPath)
      this.#monitor.on('data', (text: Buffer) => {
        this.#answers += text.toString()
      })
      await until(() => this.#answers.includes('"QMP"'), 'QEMU does not greet')
      this.#answers = ''
      await this.ask('qmp_capabilities')
    }
    this.#monitor.write(`${JSON.stringify({ execute, arguments: args })}\n`)
    let answer: Record<string, unknown> | undefined
    await until(() => {
      for (const line of this.#answers.split('\n')) {
        if (!line.includes('"return"') && !line.includes('"error"')) continue
        answer = JSON.parse(line) as Record<string, unknown>
        return true
      }
      return false
    }, `QEMU does not answer ${execute}`)
    this.#answers = ''
    if (answer!.error) throw new Error(`QEMU: ${JSON.stringify(answer!.error)}`)
    return answer!.return as Record<string, unknown>
  }

  async end(): Promise<void> {
    this.#monitor?.destroy()
    const ended = new Promise(resolve => this.#child.once('exit', resolve))
    this.#child.kill('SIGKILL')
    await ended
  }
}

async function until(is: () => boolean, otherwise: string): Promise<void> {
  const end = performance.now() + LIMIT_MS
  while (!is()) {
    if (performance.now() > end) throw new Error(otherwise)
    await sleep(1)
  }
}

export async function sampleQemu(guest: QemuGuest, mib: number): Promise<Sample> {
  const sample: Record<string, number> = {}
  const file = join(guest.folder, 'migrated')
  for (const percent of TOUCHED_PERCENT) {
    const qemu = new Qemu(guest, mib)
    try {
      await qemu.says('@ready')
      qemu.tell(`fill ${touchedMib(mib, percent)}`)
      await qemu.says('@filled')
      await qemu.ask('migrate-set-parameters', { 'max-bandwidth': BANDWIDTH, 'downtime-limit': DOWNTIME_MS })
      const began = performance.now()
      await qemu.ask('migrate', { uri: `exec:cat > ${file}` })
      let status: Record<string, unknown>
      do {
        await sleep(2)
        status = await qemu.ask('query-migrate')
        if (status.status === 'failed') throw new Error(`QEMU's migration failed: ${JSON.stringify(status)}`)
      } while (status.status !== 'completed')
      sample[saveMetric('full', mib, percent, 'total')] = performance.now() - began
      sample[saveMetric('full', mib, percent, 'pause')] = Number(status.downtime)
    } finally {
      await qemu.end()
    }
    sample[saveMetric('full', mib, percent, 'written')] = statSync(file).size / 2 ** 20
    const began = performance.now()
    const restored = new Qemu(guest, mib, `exec:cat ${file}`)
    try {
      restored.tell('hello')
      await restored.says('@answer')
      sample[restoreMetric(mib, 'to first exec')] = performance.now() - began
    } finally {
      await restored.end()
      rmSync(file)
    }
  }
  return sample
}
