/** The QEMU process that is the emulated host: how it is started, watched while it boots, and ended. */
import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync } from 'node:fs'
import type { Duplex } from 'node:stream'
import { TestbedError } from './errors.ts'
import type { HostKernel } from './host-kernel.ts'

/** A boot that prints nothing for this long hangs (QEMU's TCG does so now and then). */
const STALL_MS = 25_000
const BOOT_LIMIT_MS = 120_000

export interface QemuOptions {
  readonly kernel: HostKernel
  readonly initramfs: string
  /** A folder of the real machine that the host may write to, at the same path. */
  readonly share: string
  readonly memoryMiB: number
  readonly cpus: number
  /** Receives the serial console. */
  readonly consoleLog: string
}

function qemuArguments(options: QemuOptions): string[] {
  const { kernel, share } = options
  const port = (fd: number, nr: number) => [
    ...['-chardev', `socket,id=port${nr},fd=${fd}`],
    ...['-device', `virtserialport,chardev=port${nr},nr=${nr}`],
  ]
  return [
    ...['-M', 'q35', '-accel', 'tcg,thread=multi', '-cpu', 'max'],
    ...['-smp', String(options.cpus), '-m', String(options.memoryMiB)],
    ...['-no-reboot', '-nodefaults', '-display', 'none', '-serial', 'stdio'],
    ...['-kernel', kernel.vmlinuz, '-initrd', options.initramfs],
    ...['-append', `console=ttyS0 reboot=t panic=-1 mitigations=off share=${share} modules=${kernel.root}/lib/modules`],
    ...['-virtfs', 'local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap'],
    ...['-virtfs', `local,path=${share},mount_tag=share,security_model=none,multidevs=remap`],
    ...['-device', 'virtio-serial-pci', ...port(3, 1), ...port(4, 2), ...port(5, 3)],
  ]
}

export class QemuProcess {
  readonly #child: ChildProcess
  /** Resolves when the process has ended, with what it said on standard error. */
  readonly ended: Promise<string>
  readonly commands: Duplex
  readonly stdout: Duplex
  readonly stderr: Duplex

  private constructor(child: ChildProcess) {
    this.#child = child
    const [commands, stdout, stderr] = [3, 4, 5].map(fd => child.stdio[fd] as Duplex)
    this.commands = commands!
    this.stdout = stdout!
    this.stderr = stderr!
    // A QEMU that dies resets its sockets; `ended` reports it.
    for (const stream of [this.commands, this.stdout, this.stderr]) stream.on('error', () => {})
    let complaints = ''
    child.stderr!.on('data', (bytes: Buffer) => {
      complaints += bytes.toString()
    })
    this.ended = new Promise(resolve => {
      child.once('error', error => resolve(error.message))
      child.once('close', (status, signal) =>
        resolve(`${complaints.trim()} (${signal ?? `exit status ${status}`})`.trim()),
      )
    })
  }

  /** Starts QEMU and waits until the host's command loop says that it is up. */
  static async boot(options: QemuOptions): Promise<QemuProcess> {
    // With setpriv the kernel ends QEMU when this process ends, however it ends.
    const child = spawn('setpriv', ['--pdeathsig', 'KILL', 'qemu-system-x86_64', ...qemuArguments(options)], {
      stdio: ['ignore', 'pipe', 'pipe', 'pipe', 'pipe', 'pipe'],
    })
    const qemu = new QemuProcess(child)
    try {
      await qemu.#waitUntilUp(options.consoleLog)
      return qemu
    } catch (error) {
      await qemu.kill()
      throw error
    }
  }

  #waitUntilUp(consoleLog: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const fail = (why: string) => reject(new TestbedError('boot-failed', `the emulated host did not come up: ${why}`))
      const stalled = () => fail(`nothing new on its console for ${STALL_MS / 1000} s`)
      let stall = setTimeout(stalled, STALL_MS)
      const limit = setTimeout(() => fail(`not in ${BOOT_LIMIT_MS / 1000} s`), BOOT_LIMIT_MS)
      const settle = () => {
        clearTimeout(stall)
        clearTimeout(limit)
        stall = limit
      }
      let booting = true
      this.#child.stdout!.on('data', (bytes: Buffer) => {
        appendFileSync(consoleLog, bytes)
        if (!booting) return
        clearTimeout(stall)
        stall = setTimeout(stalled, STALL_MS)
      })
      let greeting = ''
      this.commands.on('data', (bytes: Buffer) => {
        greeting += bytes.toString()
        if (!booting || !greeting.includes('up\n')) return
        booting = false
        settle()
        resolve()
      })
      void this.ended.then(why => {
        booting = false
        settle()
        fail(`QEMU ended: ${why}`)
      })
    })
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    await this.ended
  }
}
