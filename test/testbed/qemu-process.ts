/** The QEMU process that is the emulated host: how it is started, watched while it boots, and ended. */
import { type ChildProcess, spawn } from 'node:child_process'
import { appendFileSync, readdirSync, readFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { TestbedError } from './errors.ts'
import type { HostKernel } from './host-kernel.ts'

/**
 * QEMU's TCG hangs now and then while the host boots: a boot that prints nothing for this much of its own CPU time
 * spins, one that prints nothing for this long sleeps. On a busy machine much time may pass with nothing wrong: what a thread
 * of it spent waiting for a processor does not count.
 */
const STALL_CPU_MS = 25_000
const STALL_MS = 90_000
const BOOT_LIMIT_MS = 300_000
const LOOK_MS = 2000
/** How long the monitor may take to say everything that it is asked. */
const MONITOR_MS = 3000

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

const monitorOf = (share: string): string => join(share, 'monitor')

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
    ...['-monitor', `unix:${monitorOf(share)},server=on,wait=off`],
    ...['-kernel', kernel.vmlinuz, '-initrd', options.initramfs],
    ...['-append', `console=ttyS0 reboot=t panic=-1 mitigations=off share=${share} modules=${kernel.root}/lib/modules`],
    ...['-virtfs', 'local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap'],
    ...['-virtfs', `local,path=${share},mount_tag=share,security_model=none,multidevs=remap`],
    ...['-device', 'virtio-serial-pci', ...port(3, 1), ...port(4, 2), ...port(5, 3), ...port(6, 4), ...port(7, 5)],
  ]
}

/** CPU time that a process has used; 0 once it is gone. */
function cpuMs(pid: number): number {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return (Number(fields[11]) + Number(fields[12])) * 10
  } catch {
    return 0
  }
}

/** For how long the thread that waited longest for a processor has done so, since it started. */
function waitedMs(pid: number): number {
  try {
    const waits = readdirSync(`/proc/${pid}/task`).map(thread =>
      Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[1]),
    )
    return Math.max(...waits) / 1e6
  } catch {
    return 0
  }
}

export class QemuProcess {
  readonly #child: ChildProcess
  /** Resolves when the process has ended, with what it said on standard error. */
  readonly ended: Promise<string>
  readonly commands: Duplex
  readonly stdout: Duplex
  readonly stderr: Duplex
  /** A second command loop, for looking while the first one is busy. */
  readonly looks: Duplex
  readonly seen: Duplex

  readonly #options: QemuOptions

  private constructor(child: ChildProcess, options: QemuOptions) {
    this.#child = child
    this.#options = options
    const [commands, stdout, stderr, looks, seen] = [3, 4, 5, 6, 7].map(fd => child.stdio[fd] as Duplex)
    this.commands = commands!
    this.stdout = stdout!
    this.stderr = stderr!
    this.looks = looks!
    this.seen = seen!
    // A QEMU that dies resets its sockets; `ended` reports it.
    for (const stream of [commands, stdout, stderr, looks, seen]) stream!.on('error', () => {})
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
      stdio: ['ignore', ...Array<'pipe'>(7).fill('pipe')],
    })
    const qemu = new QemuProcess(child, options)
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
      const began = Date.now()
      const pid = this.#child.pid!
      let printed = { at: began, cpuMs: 0, waitedMs: 0 }
      const look = setInterval(() => {
        const [silentMs, silentCpuMs] = [Date.now() - printed.at, cpuMs(pid) - printed.cpuMs]
        const starvedMs = waitedMs(pid) - printed.waitedMs
        const times = `${silentMs / 1000} s, ${silentCpuMs / 1000} s of them its own, ${starvedMs / 1000} s waiting for a processor`
        if (silentMs - starvedMs > STALL_MS || silentCpuMs > STALL_CPU_MS) fail(`nothing on its console for ${times}`)
        else if (Date.now() - began - waitedMs(pid) > BOOT_LIMIT_MS) fail(`not in ${BOOT_LIMIT_MS / 1000} s`)
      }, LOOK_MS)
      let booting = true
      this.#child.stdout!.on('data', (bytes: Buffer) => {
        appendFileSync(consoleLog, bytes)
        if (booting) printed = { at: Date.now(), cpuMs: cpuMs(pid), waitedMs: waitedMs(pid) }
      })
      let greeting = ''
      this.commands.on('data', (bytes: Buffer) => {
        greeting += bytes.toString()
        if (!booting || !greeting.includes('up\n')) return
        booting = false
        clearInterval(look)
        resolve()
      })
      void this.ended.then(why => {
        booting = false
        clearInterval(look)
        fail(`QEMU ended: ${why}`)
      })
    })
  }

  /** What its CPUs are doing, for the report of a host that hangs: their registers and interrupt controllers. */
  async examine(): Promise<string> {
    const perCpu = Array.from({ length: this.#options.cpus }, (_, cpu) => `cpu ${cpu}\ninfo lapic\n`)
    const monitor = connect(monitorOf(this.#options.share))
    let answer = ''
    await new Promise<void>(resolve => {
      monitor.on('data', bytes => {
        answer += bytes.toString()
      })
      monitor.on('error', error => {
        answer += `(its monitor does not answer: ${error.message})`
        resolve()
      })
      monitor.write(`info status\ninfo registers -a\n${perCpu.join('')}`)
      setTimeout(resolve, MONITOR_MS)
    })
    monitor.destroy()
    return answer
  }

  async kill(): Promise<void> {
    this.#child.kill('SIGKILL')
    await this.ended
  }
}
