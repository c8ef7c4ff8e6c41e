/**
 * The initramfs: our init, the modules a machine needs with the order to load them in, and what the caller adds. Made once
 * for each content, and kept beside the kernels.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { assetPath } from '../host/assets.ts'
import { CpioWriter } from './cpio.ts'
import { kernelsFolder } from './kernel/cache.ts'
import { ModuleIndex, readModule } from './kernel/modules.ts'

/** What a box needs of a kernel with modules: its disk, network, host channel, entropy, shared folders. */
export const BOX_MODULES: readonly string[] = [
  'virtio_mmio',
  'virtio_blk',
  'virtio_net',
  'vmw_vsock_virtio_transport',
  'virtio-rng',
  'virtio_balloon',
  'overlay',
  'fuse',
  'virtiofs',
]

export interface InitramfsOptions {
  /** The modules folder of a kernel; absent when the kernel has everything built in. */
  readonly modules?: string | undefined
  /** Names of modules; their dependencies follow by themselves. */
  readonly load?: readonly string[]
  /** The program that becomes /init; ours unless told. */
  readonly init?: Uint8Array
  /** Makes /bin/busybox and its applets' links; a path to a static busybox. */
  readonly busybox?: string | undefined
  /** More files, by their path in the guest. */
  readonly files?: Readonly<Record<string, { readonly content: Uint8Array; readonly mode?: number }>>
}

/** Links that make a shell useful. */
const APPLETS =
  'sh ls cat echo mount umount ps dmesg ip grep sed awk vi find head tail sleep poweroff reboot nproc dd sha256sum gzip seq free top uname'

export function buildInitramfs(options: InitramfsOptions = {}): Uint8Array {
  const archive = new CpioWriter()
  for (const folder of ['dev', 'proc', 'sys', 'run', 'tmp', 'root', 'bin', 'lib', 'lib/modules', 'newroot']) {
    archive.directory(folder)
  }
  // The kernel opens the console before our init has mounted devtmpfs.
  archive.characterDevice('dev/console', 5, 1, 0o600)
  archive.characterDevice('dev/null', 1, 3, 0o666)
  archive.file('init', options.init ?? readFileSync(assetPath('guest/init')), 0o755)
  const order: string[] = []
  if (options.modules !== undefined) {
    for (const module of new ModuleIndex(options.modules).loadOrder(options.load ?? BOX_MODULES)) {
      const path = `lib/modules/${basename(module.path).replace(/\.ko.*$/, '.ko')}`
      archive.file(path, readModule(module.path), 0o644)
      order.push(`/${path}\n`)
    }
  }
  archive.file('lib/modules/load-order', new TextEncoder().encode(order.join('')), 0o644)
  if (options.busybox !== undefined) {
    archive.file('bin/busybox', readFileSync(options.busybox), 0o755)
    for (const applet of APPLETS.split(' ')) archive.symlink(`bin/${applet}`, 'busybox')
  }
  for (const [path, { content, mode }] of Object.entries(options.files ?? {})) {
    archive.file(path.replace(/^\/+/, ''), content, mode ?? 0o644)
  }
  return archive.finish()
}

/** As `buildInitramfs`, as a file in the cache; the same content is the same file. */
export function ensureInitramfs(options: InitramfsOptions = {}, home?: string): string {
  const bytes = buildInitramfs(options)
  const folder = join(kernelsFolder(home), 'initramfs')
  const path = join(folder, `${createHash('sha256').update(bytes).digest('hex').slice(0, 32)}.cpio`)
  if (existsSync(path)) return path
  mkdirSync(folder, { recursive: true })
  const temporary = `${path}.${process.pid}.new`
  writeFileSync(temporary, bytes)
  renameSync(temporary, path)
  return path
}
