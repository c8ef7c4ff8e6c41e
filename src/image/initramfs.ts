/**
 * The initramfs: our init, the modules a machine needs with the order to load them in, and what the caller adds. Made once
 * for each content, and kept beside the kernels.
 */
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { assetPath } from '../host/assets.ts'
import { CpioWriter } from './cpio.ts'
import { kernelsFolder } from './kernel/cache.ts'
import { ModuleIndex, readModule, trimModule } from './kernel/modules.ts'

/** What a box needs of a kernel with modules: its disk, network, host channel, entropy. */
export const BOX_MODULES: readonly string[] = [
  'virtio_mmio',
  'virtio_blk',
  'virtio_net',
  'vmw_vsock_virtio_transport',
  'virtio-rng',
]

/** What users may want, and what some machines have devices for: a box loads it when its agent is there. */
const LATER_MODULES: readonly string[] = ['overlay', 'fuse', 'virtiofs', 'virtio_balloon']

/** What goes into an initramfs. */
export interface InitramfsOptions {
  /** The modules folder of a kernel; absent when the kernel has everything built in. */
  readonly modules?: string | undefined
  /** Names of modules, all loaded before anything else; their dependencies follow by themselves. */
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

/** An initramfs as bytes. */
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
    const index = new ModuleIndex(options.modules)
    const first = options.load ?? BOX_MODULES
    const all = index.loadOrder(options.load ? first : [...first, ...LATER_MODULES])
    const lastOfFirst = index.loadOrder(first).length
    for (const [i, module] of all.entries()) {
      const path = `lib/modules/${basename(module.path).replace(/\.ko.*$/, '.ko')}`
      archive.file(path, trimModule(readModule(module.path), module.path), 0o644)
      // What comes after the empty line can wait (guest/init/boot.c).
      order.push(`${i === lastOfFirst ? '\n' : ''}/${path}\n`)
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

/**
 * As `buildInitramfs`, as a file in the cache; the same content is the same file. Making it takes longer than starting a machine, so
 * for the usual one a note says which it is: made by this build of ours, of these modules.
 */
export function ensureInitramfs(options: InitramfsOptions = {}, home?: string): string {
  const folder = join(kernelsFolder(home), 'initramfs')
  const note = join(folder, `${noteName(options)}.made`)
  const isUsual = !options.init && !options.files && options.busybox === undefined
  if (isUsual) {
    const made = readNote(note)
    if (made !== undefined && existsSync(join(folder, made))) return join(folder, made)
  }
  const bytes = buildInitramfs(options)
  const name = `${createHash('sha256').update(bytes).digest('hex').slice(0, 32)}.cpio`
  const path = join(folder, name)
  mkdirSync(folder, { recursive: true })
  if (!existsSync(path)) replaceFile(path, bytes)
  if (isUsual) replaceFile(note, name)
  return path
}

function noteName({ modules, load }: InitramfsOptions): string {
  const build = readFileSync(assetPath('build-id'), 'utf8')
  const changed = modules === undefined ? 0 : statSync(modules, { throwIfNoEntry: false })?.mtimeMs
  return createHash('sha256')
    .update(JSON.stringify([build, modules, changed, load]))
    .digest('hex')
    .slice(0, 32)
}

function readNote(path: string): string | undefined {
  try {
    return /^[0-9a-f]{32}\.cpio$/.exec(readFileSync(path, 'utf8'))?.[0]
  } catch {
    return undefined
  }
}

function replaceFile(path: string, content: Uint8Array | string): void {
  const temporary = `${path}.${process.pid}.new`
  writeFileSync(temporary, content)
  renameSync(temporary, path)
}
