/**
 * The emulated host's kernel and modules: Debian's own, fetched once by package name and cached.
 *
 * The package that `linux-image-amd64` depends on is the ordinary flavour; the cloud flavour has no kvm-amd. Of its
 * 400 MB of modules only those that a test may want, and what they depend on, are kept.
 */
import { spawnSync } from 'node:child_process'
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'
import { TestbedError } from './errors.ts'

/** Loaded before the host's script runs. */
const BOOT_MODULES = ['virtio_pci', 'virtio_console', '9pnet_virtio', '9p', 'overlay', 'kvm-amd'] as const

/** There for `modprobe` inside the host. */
const OTHER_MODULES = ['ext4', 'loop', 'fuse', 'tun', 'veth', 'vhost_vsock', 'vhost_net'] as const

export interface HostKernel {
  /** For example `6.1.0-54-amd64`. */
  readonly release: string
  readonly vmlinuz: string
  /** A folder that holds `lib/modules/<release>`. */
  readonly root: string
  /** The modules to load at boot, as paths, each after those it needs. */
  readonly bootModules: readonly string[]
}

/** `VITRINE_CACHE` if it is set, else a folder of our own below the user's cache. */
export function cacheFolder(): string {
  const chosen = process.env.VITRINE_CACHE
  if (chosen) return join(chosen, 'testbed')
  return join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'vitrine-testbed')
}

function run(command: string, args: readonly string[], cwd?: string): string {
  const result = spawnSync(command, args, { cwd, encoding: 'utf8', env: { ...process.env, LC_ALL: 'C' } })
  if (result.status === 0) return result.stdout
  const why = result.error?.message ?? (result.stderr.trim() || `exit status ${result.status}`)
  throw new TestbedError('unavailable', `${command} ${args.join(' ')}: ${why}`)
}

/** The package with the kernel itself, which the metapackage depends on. */
function kernelPackage(): string {
  const depends = run('apt-cache', ['depends', 'linux-image-amd64'])
  const found = /^\s*Depends:\s*(linux-image-\S+-amd64)$/m.exec(depends)
  if (!found) throw new TestbedError('unavailable', "apt knows no linux-image-amd64: run 'apt-get update'")
  return found[1]!
}

/** Parses depmod's `modules.dep`: every module's path, and the paths of all it needs. */
export function parseDependencies(text: string): Map<string, readonly string[]> {
  const dependencies = new Map<string, readonly string[]>()
  for (const line of text.split('\n')) {
    const colon = line.indexOf(':')
    if (colon > 0)
      dependencies.set(
        line.slice(0, colon),
        line
          .slice(colon + 1)
          .split(' ')
          .filter(Boolean),
      )
  }
  return dependencies
}

/** The paths of `names` and of all that they need, each after what it needs, none twice. */
export function loadOrder(dependencies: ReadonlyMap<string, readonly string[]>, names: readonly string[]): string[] {
  const order = new Set<string>()
  for (const name of names) {
    const path = [...dependencies.keys()].find(key => key.endsWith(`/${name}.ko`))
    if (path === undefined) throw new TestbedError('unavailable', `the host's kernel has no module '${name}'`)
    // modules.dep lists what must be loaded first last.
    for (const needed of dependencies.get(path)!.toReversed()) order.add(needed)
    order.add(path)
  }
  return [...order]
}

/** Fetches, unpacks and prunes the kernel into `target`, which appears complete or not at all. */
function fetchKernel(target: string, log: (message: string) => void): void {
  mkdirSync(dirname(target), { recursive: true })
  const work = mkdtempSync(join(dirname(target), '.fetch-'))
  try {
    const name = kernelPackage()
    log(`fetching ${name}`)
    run('apt-get', ['download', name], work)
    const deb = readdirSync(work).find(file => file.endsWith('.deb'))
    if (!deb) throw new TestbedError('unavailable', `apt-get download ${name} left no file`)
    run('dpkg-deb', ['-x', deb, 'all'], work)
    const all = join(work, 'all')
    const release = readdirSync(join(all, 'lib/modules'))[0]!
    run('depmod', ['-b', all, release])
    const from = join(all, 'lib/modules', release)
    const kept = join(work, 'kept')
    const to = join(kept, 'lib/modules', release)
    const dependencies = parseDependencies(readFileSync(join(from, 'modules.dep'), 'utf8'))
    for (const path of loadOrder(dependencies, [...BOOT_MODULES, ...OTHER_MODULES]))
      cpSync(join(from, path), join(to, path))
    for (const file of ['modules.order', 'modules.builtin', 'modules.builtin.modinfo'])
      cpSync(join(from, file), join(to, file))
    run('depmod', ['-b', kept, release])
    cpSync(join(all, 'boot', `vmlinuz-${release}`), join(kept, 'vmlinuz'))
    if (!existsSync(target)) renameSync(kept, target)
  } finally {
    rmSync(work, { recursive: true, force: true })
  }
}

/** The host's kernel, from the cache or from Debian. */
export function hostKernel(log: (message: string) => void = () => {}): HostKernel {
  const root = join(cacheFolder(), 'host-kernel')
  if (!existsSync(root)) fetchKernel(root, log)
  const release = readdirSync(join(root, 'lib/modules'))[0]!
  const modules = join(root, 'lib/modules', release)
  const dependencies = parseDependencies(readFileSync(join(modules, 'modules.dep'), 'utf8'))
  return {
    release,
    root,
    vmlinuz: join(root, 'vmlinuz'),
    bootModules: loadOrder(dependencies, BOOT_MODULES).map(path => join(modules, path)),
  }
}
