/**
 * The same guest on three networks: ours, QEMU's user network (slirp), and passt. One kernel, one initramfs; the guest asks the host for
 * a command over the network that is measured, runs it, and prints what came of it on its console.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { VMM_NODE_OPTIONS } from '../../src/box/vmm/node-options.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'

const GUEST_MIB = 256
/** The emulated host is slow; on this machine a guest that takes this long hangs. */
const BOOT_MS = { soft: 60_000, kvm: 240_000 } as const
const COMMAND_LINE = 'console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on no_timer_check'
const MODULES = ['virtio_mmio', 'virtio_pci', 'virtio_net']
export const GATEWAY = '10.0.2.2'

export type Accelerator = 'soft' | 'kvm'

/** A guest that did not do in time what it was asked to, or ended. */
export class GuestHangs extends Error {}

/** A guest that runs commands. */
export interface NetGuest {
  run(command: string, limitMs: number): Promise<string>
  close(): Promise<void>
}

/** What all guests boot, and where they ask for commands. */
export class GuestParts {
  readonly folder: string
  readonly kernel: string
  readonly initrd: string
  readonly #server: Server
  readonly #waiting = new Map<string, ServerResponse>()

  private constructor(folder: string, kernel: string, initrd: string, server: Server) {
    this.folder = folder
    this.kernel = kernel
    this.initrd = initrd
    this.#server = server
    server.on('request', (request, response) => {
      this.#waiting.set(request.url!.slice(1), response)
      response.on('close', () => {
        if (this.#waiting.get(request.url!.slice(1)) === response) this.#waiting.delete(request.url!.slice(1))
      })
    })
  }

  static async make(folder: string): Promise<GuestParts> {
    const server = createServer({ requestTimeout: 0, headersTimeout: 0 })
    server.timeout = 0
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as AddressInfo
    const { path, modules } = await findKernel({ tuned: false })
    const initrd = join(folder, 'initrd')
    const script = `#!/bin/busybox sh
export PATH=/sbin:/bin:/usr/bin
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; mkdir -p /tmp
for m in $(cat /lib/modules/load-order); do insmod $m; done
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via ${GATEWAY}
NAME=$(sed 's/.*bench.name=\\([a-z]*\\).*/\\1/' /proc/cmdline)
[ $NAME = passt ] && ip link set eth0 mtu 65520
echo GUEST-UP
while :; do
  wget -qO /tmp/command http://${GATEWAY}:${port}/$NAME || { sleep 1; continue; }
  echo; echo "@begin"; sh /tmp/command 2>&1; STATUS=$?; echo; echo "@end $STATUS"
done
`
    const program = (file: string): string[] => [
      file,
      ...(execFileSync('ldd', [file], { encoding: 'utf8' }).match(/\/\S+/g) ?? []),
    ]
    const files: Record<string, { content: Uint8Array; mode: number }> = {}
    for (const file of program('/usr/bin/iperf3')) files[file] = { content: readFileSync(file), mode: 0o755 }
    files['/bin/pingpong'] = { content: readFileSync(compilePingPong(folder)), mode: 0o755 }
    const init = new TextEncoder().encode(script)
    writeFileSync(initrd, buildInitramfs({ modules, load: MODULES, init, busybox: '/bin/busybox', files }))
    return new GuestParts(folder, path, initrd, server)
  }

  /** Gives the guest of that name its next command, when it asks. */
  async command(name: string, text: string, limitMs: number): Promise<void> {
    const end = Date.now() + limitMs
    while (!this.#waiting.has(name)) {
      if (Date.now() > end) throw new GuestHangs(`the guest on ${name} does not ask for work`)
      await new Promise(resolve => setTimeout(resolve, 5))
    }
    const response = this.#waiting.get(name)!
    this.#waiting.delete(name)
    response.end(`${text}\n`)
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }
}

export function compilePingPong(folder: string): string {
  const output = join(folder, 'pingpong')
  if (!existsSync(output)) {
    const source = fileURLToPath(new URL('pingpong.c', import.meta.url))
    execFileSync('gcc', ['-static', '-O2', '-Wall', '-Werror', '-s', '-o', output, source])
  }
  return output
}

/** Waits on a console for what a guest prints. */
class Console {
  #text = ''
  #onText: () => void = () => {}
  ended: string | undefined

  add(data: Uint8Array): void {
    this.#text += Buffer.from(data).toString('latin1')
    this.#onText()
  }

  end(why: string): void {
    this.ended = why
    this.#onText()
  }

  /** Resolves with the match, and forgets all up to it. */
  wait(pattern: RegExp, limitMs: number): Promise<RegExpExecArray> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => fail(`nothing like ${pattern} in ${limitMs} ms`), limitMs)
      const fail = (why: string): void => {
        clearTimeout(timer)
        this.#onText = () => {}
        reject(new Error(`${why}; the console:\n${this.#text.slice(-2000)}`))
      }
      const look = (): void => {
        const match = pattern.exec(this.#text)
        if (!match) {
          if (this.ended !== undefined) fail(`the guest ended: ${this.ended}`)
          return
        }
        clearTimeout(timer)
        this.#onText = () => {}
        this.#text = this.#text.slice(match.index + match[0].length)
        resolve(match)
      }
      this.#onText = look
      look()
    })
  }
}

function guestOn(name: string, parts: GuestParts, console: Console, close: () => Promise<void>): NetGuest {
  return {
    run: async (command, limitMs) => {
      await parts.command(name, command, limitMs)
      const [, output, status] = await console.wait(/@begin\s([\s\S]*?)@end (\d+)/, limitMs).catch((error: Error) => {
        throw new GuestHangs(`'${command}' in the guest on ${name}: ${error.message}`)
      })
      if (status !== '0') throw new Error(`${command} in the guest on ${name}: status ${status}\n${output}`)
      return output!
    },
    close,
  }
}

/** What `work` gives; if it fails, after `undo`. */
export async function orUndo<T>(work: Promise<T>, undo: () => Promise<void>): Promise<T> {
  try {
    return await work
  } catch (error) {
    await undo()
    throw error
  }
}

/** With setpriv the kernel ends the process when this one ends, however it ends. */
const leashed = (command: readonly string[]): ChildProcess =>
  spawn('setpriv', ['--pdeathsig', 'KILL', ...command], { stdio: ['ignore', 'pipe', 'pipe'] })

/** A VMM with a guest of that name, whose console is its standard output. */
async function startProcess(
  name: string,
  parts: GuestParts,
  accel: Accelerator,
  command: readonly string[],
  after: () => void,
): Promise<NetGuest> {
  const child = leashed(command)
  const console = new Console()
  child.stdout!.on('data', (data: Buffer) => console.add(data))
  let errors = ''
  child.stderr!.on('data', (data: Buffer) => {
    errors += data
  })
  child.once('close', () => console.end(errors.trim()))
  const end = async (): Promise<void> => {
    child.kill('SIGKILL')
    after()
  }
  await orUndo(console.wait(/GUEST-UP/, BOOT_MS[accel]), end)
  return guestOn(name, parts, console, end)
}

const wordsOf = (name: string): string => `${COMMAND_LINE} bench.name=${name}`

/** Ours, as a box would be run: VITRINE_THREADS=many, which it inherits, gives vCPU and network a thread each. */
export function startOurs(parts: GuestParts, accel: Accelerator): Promise<NetGuest> {
  const program = fileURLToPath(new URL('machine.ts', import.meta.url))
  const node = [process.execPath, ...VMM_NODE_OPTIONS, '--import', 'tsx', program]
  const guest = [parts.kernel, parts.initrd, String(GUEST_MIB), accel, wordsOf('ours')]
  return startProcess('ours', parts, accel, [...node, ...guest], () => {})
}

/** QEMU with one of its networks. */
function startQemu(
  name: string,
  parts: GuestParts,
  accel: Accelerator,
  network: readonly string[],
  after: () => void,
): Promise<NetGuest> {
  const processor = accel === 'kvm' ? ['-enable-kvm', '-cpu', 'host'] : ['-accel', 'tcg', '-cpu', 'max']
  const command = [
    ...['qemu-system-x86_64', '-M', 'q35', ...processor, '-m', String(GUEST_MIB), '-smp', '1'],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-serial', 'stdio', '-no-reboot'],
    ...['-kernel', parts.kernel, '-initrd', parts.initrd, '-append', wordsOf(name)],
    ...['-device', 'virtio-net-pci,netdev=n,mac=02:00:00:00:00:02', ...network],
  ]
  return startProcess(name, parts, accel, command, after)
}

export const startSlirp = (parts: GuestParts, accel: Accelerator): Promise<NetGuest> =>
  startQemu('slirp', parts, accel, ['-netdev', 'user,id=n,ipv6=off'], () => {})

/** passt gives its rights up for those of nobody, so the socket is where nobody may write. */
export async function startPasst(parts: GuestParts, accel: Accelerator): Promise<NetGuest> {
  const path = `/tmp/vitrine-passt-${process.pid}.sock`
  rmSync(path, { force: true })
  const address = ['-4', '-a', '10.0.2.15', '-n', '24', '-g', GATEWAY]
  const passt = leashed(['passt', '-f', '-s', path, '--no-dhcp-dns', ...address])
  let said = ''
  passt.stderr!.on('data', (data: Buffer) => {
    said += data
  })
  let isOver = false
  const ended = new Promise<never>((_, reject) => {
    passt.once('close', () => {
      isOver = true
      reject(new Error(`passt ended: ${said.trim().replaceAll('\n', '; ')}`))
    })
  })
  const listens = async (): Promise<void> => {
    while (!isOver && !existsSync(path)) await new Promise(resolve => setTimeout(resolve, 50))
  }
  // Later it ends because we end it.
  ended.catch(() => {})
  await Promise.race([listens(), ended])
  const network = ['-netdev', `stream,id=n,server=off,addr.type=unix,addr.path=${path}`]
  return startQemu('passt', parts, accel, network, () => {
    passt.kill('SIGKILL')
    rmSync(path, { force: true })
  })
}
