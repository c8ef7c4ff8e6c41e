/** Boots Linux with virtio devices and a shell script as its init, for tests on any accelerator. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { assetUrl } from '../../src/host/assets.ts'
import { buildInitramfs } from '../../src/image/initramfs.ts'
import { findKernel } from '../../src/image/kernel/find.ts'
import { Machine } from '../../src/machine/machine.ts'
import type { MachineExit } from '../../src/machine/machine-events.ts'
import type { MachineOptions } from '../../src/machine/machine-options.ts'
import { GuestMemory } from '../../src/memory/guest-memory.ts'
import type { DeviceDescription } from '../../src/virtio/worker/descriptions.ts'
import { DeviceWorker } from '../../src/virtio/worker/device-worker.ts'
import { HostedDevice } from '../../src/virtio/worker/hosted-device.ts'

const MODULES = [
  'virtio_mmio',
  'virtio_blk',
  'virtio_net',
  'vmw_vsock_virtio_transport',
  'virtio-rng',
  'virtio_balloon',
  'virtio_console',
  'ext4',
]

/** A program of this machine with the libraries that it needs, by path. */
export function programFiles(path: string): Record<string, { content: Uint8Array; mode: number }> {
  const libraries = execFileSync('ldd', [path], { encoding: 'utf8' }).match(/\/\S+/g) ?? []
  return Object.fromEntries([path, ...libraries].map(file => [file, { content: readFileSync(file), mode: 0o755 }]))
}

/** Compiles a program of this folder for guests. */
export const compileVsockPipe = (folder: string): Uint8Array => compileProgram(folder, 'vsock-pipe')

export function compileProgram(folder: string, name: string): Uint8Array {
  const output = join(folder, name)
  const source = fileURLToPath(new URL(`${name}.c`, import.meta.url))
  execFileSync('gcc', ['-static', '-Os', '-Wall', '-Werror', '-s', '-o', output, source])
  return readFileSync(output)
}

/** What a test guest boots, with a shell script for init; it powers off after it. */
async function testInitramfs(
  script: string,
  files: GuestOptions['files'] = {},
): Promise<{ kernel: string; initrd: Uint8Array }> {
  const kernel = await findKernel()
  const init = new TextEncoder().encode(`${PREAMBLE}${script}\necho; echo GUEST-DONE\npoweroff -f\n`)
  const options = { modules: kernel.modules, load: MODULES, init, busybox: '/bin/busybox', files }
  return { kernel: kernel.path, initrd: buildInitramfs(options) }
}

const PREAMBLE = `#!/bin/busybox sh
export PATH=/sbin:/usr/sbin:/bin:/usr/bin
/bin/busybox --install -s /bin 2>/dev/null
mkdir -p /mnt
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys
for m in $(cat /lib/modules/load-order); do insmod $m || echo "COULD NOT LOAD $m"; done
`

export interface GuestOptions {
  readonly accel: NonNullable<MachineOptions['accel']>
  readonly devices: readonly DeviceDescription[]
  /** What init does after the modules are loaded; then it powers off. */
  readonly script: string
  readonly files?: Record<string, { content: Uint8Array; mode?: number }>
  readonly memoryMib?: number
  readonly cpus?: number
  /** All devices in one worker, or one each (the default). */
  readonly sharedWorker?: boolean
}

export class TestGuest {
  readonly machine: Machine
  readonly devices: readonly HostedDevice[]
  /** What the device workers had to report. */
  readonly reports: readonly string[]
  #output = ''

  private constructor(machine: Machine, devices: readonly HostedDevice[], reports: readonly string[]) {
    this.machine = machine
    this.reports = reports
    this.devices = devices
    machine.on('console', data => {
      this.#output += Buffer.from(data).toString('latin1')
    })
  }

  static async boot(options: GuestOptions): Promise<TestGuest> {
    const guest = await TestGuest.create(options)
    guest.machine.start()
    return guest
  }

  /** Another machine of the same kind that goes on where `machine` is; that one is paused, saved and closed. */
  static async continue(options: GuestOptions, machine: Machine): Promise<TestGuest> {
    await machine.pause()
    const state = await machine.save()
    const memory = GuestMemory.create(machine.memory.size / 2 ** 20)
    for (const { offset, size } of machine.memory.regions) {
      memory.bytes.set(machine.memory.bytes.subarray(offset, offset + size), offset)
    }
    await machine.close()
    const guest = await TestGuest.create(options, memory)
    await guest.machine.restore(state)
    await guest.machine.resume()
    return guest
  }

  /** Without a memory the kernel is loaded; with one it is to be restored. */
  private static async create(options: GuestOptions, memory?: GuestMemory): Promise<TestGuest> {
    const { kernel, initrd } = await testInitramfs(options.script, options.files)
    const reports: string[] = []
    const start = (): DeviceWorker =>
      new DeviceWorker(assetUrl('device.worker.cjs'), report => reports.push(report.message))
    const shared = options.sharedWorker ? start() : undefined
    const devices = options.devices.map(description => new HostedDevice(shared ?? start(), description))
    const guestParts = {
      kernel: readFileSync(kernel),
      initrd,
      cmdline: 'console=ttyS0 panic=-1 quiet random.trust_cpu=on',
      memoryMib: options.memoryMib ?? 256,
    }
    const machine = await Machine.create({
      accel: options.accel,
      ...(memory ? { memory } : guestParts),
      cpus: options.cpus ?? 1,
      devices,
    })
    return new TestGuest(machine, devices, reports)
  }

  get output(): string {
    return this.#output
  }

  device(kind: DeviceDescription['kind']): HostedDevice {
    return this.devices.find(device => device.name === kind)!
  }

  /** Waits until the guest has printed something that matches; the match. */
  async printed(pattern: RegExp, timeoutMs: number): Promise<RegExpExecArray> {
    const end = Date.now() + timeoutMs
    for (;;) {
      const match = pattern.exec(this.#output)
      if (match) return match
      if (Date.now() > end || this.machine.exit) {
        throw new Error(`the guest did not print ${pattern}; it printed:\n${this.#output.slice(-4000)}`)
      }
      await new Promise(resolve => setTimeout(resolve, 20))
    }
  }

  async ended(timeoutMs: number): Promise<MachineExit> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`the guest goes on and on:\n${this.#output.slice(-4000)}`)), timeoutMs)
    })
    try {
      return await Promise.race([this.machine.ended(), late])
    } finally {
      clearTimeout(timer)
    }
  }

  close(): Promise<void> {
    return this.machine.close()
  }
}
