/**
 * Testbed 2: an emulated AMD machine, in which Debian's own kernel has loaded kvm-amd, so that /dev/kvm there is real
 * KVM on any machine that can run QEMU. The real machine's file system is visible inside at the same paths.
 *
 *   await withAmdHost(async host => {
 *     const { status, stdout } = await host.run(['uname', '-a'])
 *   })
 */
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  accessSync,
  constants,
  copyFileSync,
  existsSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { TestbedError } from './errors.ts'
import { cacheFolder, hostKernel } from './host-kernel.ts'
import { writeInitramfs } from './initramfs.ts'
import { OutputStream } from './output-stream.ts'
import { QemuProcess } from './qemu-process.ts'

const AGENT = fileURLToPath(new URL('agent.sh', import.meta.url))
const PROCESSES = fileURLToPath(new URL('processes.sh', import.meta.url))
const HOLD_KVM = fileURLToPath(new URL('hold-kvm.c', import.meta.url))
const BUSYBOX = '/bin/busybox'
/** Of the console of a host that died. */
const LAST_LINES = 12
const MOST_LINES = 120
/** How long a host that hangs may take to say what its processes do: it is not all of it that hangs when it can. */
const LOOK_MS = 30_000

export interface AmdHostOptions {
  readonly memoryMiB?: number
  /** One unless told: README.md says what is wrong with two. */
  readonly cpus?: number
  /** How often it is started again when it does not come up. */
  readonly attempts?: number
  log?(message: string): void
}

export interface RunOptions {
  /** The host is ended when a command takes longer: what hangs in it cannot be trusted to go away. */
  readonly timeoutMs?: number
  /** The same when it prints nothing for so long. */
  readonly silenceMs?: number
  readonly cwd?: string
  readonly env?: Readonly<Record<string, string>>
  onOutput?(bytes: Buffer, stream: 'stdout' | 'stderr'): void
}

export interface RunResult {
  readonly status: number
  readonly stdout: string
  readonly stderr: string
}

/** Why the emulated host cannot be had here, or null when it can. */
export function amdHostUnavailable(): string | null {
  if (process.platform !== 'linux' || process.arch !== 'x64') return 'the emulated AMD host needs Linux on x86-64'
  const missing: string[] = []
  const path = ['/usr/local/sbin', '/usr/sbin', '/sbin', ...(process.env.PATH ?? '').split(delimiter)]
  const isThere = (program: string) => path.some(folder => isExecutable(join(folder, program)))
  if (!isThere('qemu-system-x86_64')) missing.push('qemu-system-x86')
  if (!existsSync(BUSYBOX)) missing.push('busybox-static')
  if (!isThere('cpio')) missing.push('cpio')
  if (!isThere('gcc')) missing.push('gcc')
  if (!isThere('setpriv')) missing.push('util-linux')
  if (!existsSync(join(cacheFolder(), 'host-kernel'))) {
    if (!isThere('depmod')) missing.push('kmod')
    if (!isThere('apt-get')) return `Debian's kernel cannot be fetched without apt-get`
  }
  return missing.length === 0 ? null : `not installed: ${missing.join(' ')} (apt-get install ${missing.join(' ')})`
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK)
    return true
  } catch {
    return false
  }
}

function compile(source: string, program: string): void {
  const { status, error, stderr } = spawnSync('gcc', ['-static', '-O2', '-Wall', '-Werror', '-o', program, source])
  if (status !== 0) throw new TestbedError('unavailable', `gcc: ${error?.message ?? stderr.toString()}`)
}

/** Its last lines, and those since the kernel first complained: how it began says more than how it ended. */
function endOfConsole(text: string): string {
  const lines = text.trimEnd().split('\n')
  const trouble = lines.findIndex(line => /\b(BUG|Oops|PANIC|panic)\b(?!=)/.test(line))
  const last = Math.max(0, lines.length - LAST_LINES)
  if (trouble < 0 || trouble >= last) return lines.slice(last).join('\n')
  return lines.slice(trouble, trouble + MOST_LINES).join('\n')
}

const quote = (word: string): string => `'${word.replaceAll("'", "'\\''")}'`

function scriptOf(argv: readonly string[], options: RunOptions): string {
  const env = Object.entries(options.env ?? {}).map(([name, value]) => `export ${name}=${quote(value)}\n`)
  return `cd ${quote(options.cwd ?? process.cwd())} || exit 126\n${env.join('')}exec ${argv.map(quote).join(' ')}\n`
}

export class AmdHost {
  /** A folder that both sides see and may write to, at the same path. It goes when the host does. */
  readonly share: string
  readonly #qemu: QemuProcess
  readonly #stdout = new OutputStream()
  readonly #stderr = new OutputStream()
  readonly #seen = new OutputStream()
  #last: Promise<unknown> = Promise.resolve()
  readonly #removeShare = (): void => rmSync(this.share, { recursive: true, force: true })

  private constructor(share: string, qemu: QemuProcess) {
    this.share = share
    this.#qemu = qemu
    qemu.stdout.on('data', (bytes: Buffer) => this.#stdout.push(bytes))
    qemu.stderr.on('data', (bytes: Buffer) => this.#stderr.push(bytes))
    qemu.seen.on('data', (bytes: Buffer) => this.#seen.push(bytes))
    process.once('exit', this.#removeShare)
  }

  static async start(options: AmdHostOptions = {}): Promise<AmdHost> {
    const log = options.log ?? (() => {})
    const unavailable = amdHostUnavailable()
    if (unavailable) throw new TestbedError('unavailable', unavailable)
    const kernel = hostKernel(log)
    const share = mkdtempSync(join(tmpdir(), 'vitrine-amd-host-'))
    try {
      const initramfs = join(share, 'initramfs.cpio')
      writeInitramfs(initramfs, BUSYBOX, kernel.bootModules, share)
      copyFileSync(AGENT, join(share, 'agent.sh'))
      compile(HOLD_KVM, join(share, 'hold-kvm'))
      const consoleLog = join(share, 'console.log')
      const attempts = options.attempts ?? 4
      for (let attempt = 1; ; attempt++) {
        const began = Date.now()
        writeFileSync(consoleLog, '')
        try {
          const qemu = await QemuProcess.boot({
            ...{ kernel, initramfs, share, consoleLog },
            memoryMiB: options.memoryMiB ?? 4096,
            cpus: options.cpus ?? 1,
          })
          log(`the emulated AMD host is up after ${((Date.now() - began) / 1000).toFixed(1)} s`)
          return new AmdHost(share, qemu)
        } catch (error) {
          const end = endOfConsole(readFileSync(consoleLog, 'utf8'))
          const message = `${error instanceof Error ? error.message : error}\nThe end of its console:\n${end}`
          if (attempt >= attempts) throw new TestbedError('boot-failed', `${message}\n(${attempts} attempts)`)
          log(`${message}\nstarting it again`)
        }
      }
    } catch (error) {
      rmSync(share, { recursive: true, force: true })
      throw error
    }
  }

  /** Everything that the host printed on its serial console. */
  get consoleLog(): string {
    return readFileSync(join(this.share, 'console.log'), 'utf8')
  }

  /** Runs a command in the host, after those already asked for. Any exit status is a result. */
  run(argv: readonly string[], options: RunOptions = {}): Promise<RunResult> {
    const result = this.#last.then(() => this.#runNow(argv, options))
    this.#last = result.catch(() => {})
    return result
  }

  async #runNow(argv: readonly string[], options: RunOptions): Promise<RunResult> {
    const id = randomBytes(8).toString('hex')
    const script = join(this.share, `${id}.sh`)
    let silence: NodeJS.Timeout | undefined
    writeFileSync(script, scriptOf(argv, options))
    const collect = (stream: OutputStream, name: 'stdout' | 'stderr') => {
      const chunks: Buffer[] = []
      return new Promise<{ status: number; text: string }>(resolve => {
        const onBytes = (bytes: Buffer) => {
          chunks.push(bytes)
          silence?.refresh()
          options.onOutput?.(bytes, name)
        }
        stream.begin(id, onBytes, status => resolve({ status, text: Buffer.concat(chunks).toString() }))
      })
    }
    const timeoutMs = options.timeoutMs ?? 120_000
    const timers: NodeJS.Timeout[] = []
    const timeout = new Promise<never>((_, reject) => {
      const limit = (afterMs: number, what: string): NodeJS.Timeout => {
        const timer = setTimeout(async () => {
          const processes = await this.look(['sh', PROCESSES])
          const state = await this.#qemu.examine()
          void this.#qemu.kill()
          const said = `'${argv.join(' ')}' ${what} ${afterMs / 1000} s in the emulated host, which was ended`
          reject(new TestbedError('timeout', `${said}\nIts processes:\n${processes}\nIts CPUs:\n${state}`))
        }, afterMs)
        timers.push(timer)
        return timer
      }
      limit(timeoutMs, 'took more than')
      if (options.silenceMs !== undefined) silence = limit(options.silenceMs, 'said nothing for')
    })
    const died = this.#qemu.ended.then(why => {
      const end = endOfConsole(this.consoleLog)
      throw new TestbedError('host-died', `the emulated host ended: ${why}\nThe end of its console:\n${end}`)
    })
    // Whichever of the three comes first decides; the others may still reject afterwards.
    for (const promise of [timeout, died]) promise.catch(() => {})
    try {
      const both = Promise.all([collect(this.#stdout, 'stdout'), collect(this.#stderr, 'stderr')])
      this.#qemu.commands.write(`${id}\n`)
      const [out, err] = await Promise.race([both, timeout, died])
      return { status: out.status, stdout: out.text, stderr: err.text }
    } finally {
      for (const timer of timers) clearTimeout(timer)
      rmSync(script, { force: true })
    }
  }

  /** What a command prints that runs beside the others, or that it did not come to it: a host that does not answer here hangs itself. One at a time. */
  async look(argv: readonly string[], limitMs = LOOK_MS): Promise<string> {
    const id = randomBytes(8).toString('hex')
    const script = join(this.share, `${id}.sh`)
    const chunks: Buffer[] = []
    let limit: NodeJS.Timeout | undefined
    writeFileSync(script, scriptOf(argv, { cwd: '/' }))
    try {
      const end = new Promise<string>(resolve => {
        limit = setTimeout(() => resolve(`(no more in ${limitMs / 1000} s)`), limitMs)
        this.#seen.begin(
          id,
          bytes => chunks.push(bytes),
          status => resolve(status === 0 ? '' : `(status ${status})`),
        )
      })
      this.#qemu.looks.write(`${id}\n`)
      const said = await end
      return `${Buffer.concat(chunks)}${said}`
    } finally {
      clearTimeout(limit)
      rmSync(script, { force: true })
    }
  }

  async stop(): Promise<void> {
    await this.#qemu.kill()
    process.off('exit', this.#removeShare)
    this.#removeShare()
  }
}

/** Starts the emulated host, hands it over, and ends it whatever happens. */
export async function withAmdHost<T>(use: (host: AmdHost) => Promise<T>, options: AmdHostOptions = {}): Promise<T> {
  const host = await AmdHost.start(options)
  try {
    return await use(host)
  } finally {
    await host.stop()
  }
}
