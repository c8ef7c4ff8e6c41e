/**
 * Debian's cloud kernel, by package name: apt resolves, fetches and checks it (against the signed index), dpkg unpacks it, we
 * decompress it. Fetched once; as any user, without installing anything.
 */
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { kernelElf, parseKernel } from '../../machine/boot/kernel-image.ts'
import { createEntry, withFolderLock } from './cache.ts'
import { sha256OfFile, unpackDeb } from './deb.ts'
import { KernelError } from './errors.ts'
import { runTool } from './run-tool.ts'

const META_PACKAGE = 'linux-image-cloud-amd64'

/** What `kernel.json` says of an entry of the cache. */
export interface KernelRecord {
  readonly source: 'debian' | 'tuned'
  readonly release: string
  readonly version: string
  readonly package: string
  /** Of the package file. */
  readonly sha256: string
  /** Where one that was built here was seen to boot, and in how long. */
  readonly booted?: { readonly accelerator: string; readonly milliseconds: number }
}

export type Progress = (message: string) => void

export interface FetchTools {
  /** Runs apt-cache and apt-get; replaced in tests. */
  readonly run: typeof runTool
}

/** The folder of Debian's kernel in the cache, fetching it first if it is not there. */
export async function ensureDebianKernel(
  folder: string,
  progress: Progress = () => {},
  tools: FetchTools = { run: runTool },
): Promise<string> {
  const cached = newestDebianKernel(folder)
  if (cached !== undefined) return cached
  return withFolderLock(
    folder,
    async () => {
      // Another process may have made it while this one waited.
      const made = newestDebianKernel(folder)
      if (made !== undefined) return made
      progress(`Looking for ${META_PACKAGE}`)
      const { name, version } = await resolvePackage(tools)
      return createEntry(folder, `debian-${name.replace(/^linux-image-/, '')}_${version}`, path =>
        fetchInto(path, name, version, progress, tools),
      )
    },
    () => progress('Waiting for another process that fetches the kernel'),
  )
}

/** The newest entry that is in the cache, without the network. */
export function newestDebianKernel(folder: string): string | undefined {
  if (!existsSync(folder)) return undefined
  const entries = readdirSync(folder).filter(name => name.startsWith('debian-'))
  entries.sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))
  const newest = entries.at(-1)
  return newest === undefined ? undefined : join(folder, newest)
}

async function resolvePackage({ run }: FetchTools): Promise<{ name: string; version: string }> {
  const options = { package: 'apt', code: 'DOWNLOAD' } as const
  const depends = await run('apt-cache', ['depends', '--important', META_PACKAGE], options).catch(rethrowRemedy)
  const name = /Depends: (linux-image-[^\s]+-cloud-amd64(?:-unsigned)?)/.exec(depends)?.[1]
  if (name === undefined) {
    throw new KernelError(
      'DOWNLOAD',
      `apt knows no ${META_PACKAGE}: run apt-get update, or give a kernel with --kernel`,
    )
  }
  const shown = await run('apt-cache', ['show', '--no-all-versions', name], options).catch(rethrowRemedy)
  const version = /^Version: (.+)$/m.exec(shown)?.[1]
  if (version === undefined) {
    throw new KernelError('DOWNLOAD', `apt knows no version of ${name}: run apt-get update, or use --kernel`)
  }
  return { name, version }
}

function rethrowRemedy(error: unknown): never {
  if (!(error instanceof KernelError)) throw error
  const remedy = 'run apt-get update, check the network, or give a kernel with --kernel or VITRINE_KERNEL'
  throw new KernelError(error.code, `${error.message}. To have a kernel: ${remedy}`, { cause: error })
}

async function fetchInto(
  path: string,
  name: string,
  version: string,
  progress: Progress,
  { run }: FetchTools,
): Promise<void> {
  const download = join(path, 'download')
  mkdirSync(download)
  progress(`Fetching ${name} ${version}`)
  await run('apt-get', ['download', `${name}=${version}`], {
    cwd: download,
    package: 'apt',
    code: 'DOWNLOAD',
  }).catch(rethrowRemedy)
  const deb = readdirSync(download).find(file => file.endsWith('.deb'))
  if (deb === undefined) throw new KernelError('DOWNLOAD', `apt-get download ${name} left no package`)
  const sha256 = await sha256OfFile(join(download, deb))
  await requireKnownChecksum(name, version, sha256, run)
  progress(`Unpacking ${deb}`)
  const unpacked = join(path, 'unpacked')
  await unpackDeb(join(download, deb), unpacked)
  const image = readdirSync(join(unpacked, 'boot')).find(file => file.startsWith('vmlinuz-'))
  if (image === undefined) throw new KernelError('BAD_PACKAGE', `${deb} has no kernel in it`)
  const release = image.slice('vmlinuz-'.length)
  progress('Decompressing the kernel')
  const elf = kernelElf(readFileSync(join(unpacked, 'boot', image)))
  // Refused here rather than at every boot.
  parseKernel(elf)
  writeFileSync(join(path, 'vmlinux'), elf)
  cpSync(join(unpacked, 'lib', 'modules', release), join(path, 'modules'), { recursive: true })
  cpSync(join(unpacked, 'boot', `config-${release}`), join(path, 'config'))
  const record: KernelRecord = { source: 'debian', release, version, package: name, sha256 }
  writeFileSync(join(path, 'kernel.json'), `${JSON.stringify(record, undefined, 2)}\n`)
  rmSync(download, { recursive: true })
  rmSync(unpacked, { recursive: true })
}

/** apt has checked it; this makes sure that what is on the disk now is what the index promised. */
async function requireKnownChecksum(name: string, version: string, sha256: string, run: typeof runTool): Promise<void> {
  const shown = await run('apt-cache', ['show', `${name}=${version}`], { package: 'apt', code: 'DOWNLOAD' })
  const expected = /^SHA256: ([0-9a-f]{64})$/m.exec(shown)?.[1]
  if (expected !== undefined && expected !== sha256) {
    throw new KernelError('BAD_PACKAGE', `${name} has checksum ${sha256}, the index says ${expected}: try again`)
  }
}
