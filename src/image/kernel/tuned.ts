/**
 * The tuned kernel: Debian's kernel source with the configuration of guest/kernel.config, everything built in. Nothing needs
 * it; once built it is preferred, because it boots in a fraction of the time.
 *
 *   kernels/build/            where it is built; stays when a build is interrupted, and is gone when it is done
 *   kernels/tuned-<hash>/     vmlinux, config, kernel.json; there only once it has been seen to boot
 *
 * <hash> is of the configuration, so a changed configuration is another kernel.
 */
import { createHash } from 'node:crypto'
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { assetPath } from '../../host/assets.ts'
import { parseKernel } from '../../machine/boot/kernel-image.ts'
import { type BootCheck, checkKernelBoots } from './boot-check.ts'
import { createEntry, kernelsFolder, withFolderLock } from './cache.ts'
import { checkConfig } from './config.ts'
import { sha256OfFile, unpackDeb } from './deb.ts'
import type { KernelRecord, Progress } from './debian.ts'
import { KernelError } from './errors.ts'
import { runTool } from './run-tool.ts'

const SOURCE_PACKAGE = 'linux-source-6.1'
/** Objects that make compiles with this configuration, for a percentage; only a display depends on it. */
const EXPECTED_STEPS = 1500

/** What has to be installed, each with a file that shows that it is. */
const NEEDED: readonly [file: string, packageName: string][] = [
  ['/usr/bin/gcc', 'gcc'],
  ['/usr/bin/make', 'make'],
  ['/usr/bin/flex', 'flex'],
  ['/usr/bin/bison', 'bison'],
  ['/usr/bin/bc', 'bc'],
  ['/usr/bin/xz', 'xz-utils'],
  ['/usr/include/gelf.h', 'libelf-dev'],
]

const configPath = (): string => assetPath('../guest/kernel.config')

export const tunedConfig = (): string => readFileSync(configPath(), 'utf8')

/** Comments and the order of lines do not make another kernel. */
export function configHash(config: string): string {
  const lines = config
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '' && (!line.startsWith('#') || line.endsWith('is not set')))
  return createHash('sha256').update(lines.sort().join('\n')).digest('hex').slice(0, 16)
}

/** The cached kernel of the present configuration, if it was built and then seen to boot. */
export function tunedKernel(folder: string): string | undefined {
  if (!existsSync(configPath())) return undefined
  const path = join(folder, `tuned-${configHash(tunedConfig())}`)
  return hasBooted(path) ? path : undefined
}

function hasBooted(entry: string): boolean {
  try {
    const record = JSON.parse(readFileSync(join(entry, 'kernel.json'), 'utf8')) as KernelRecord
    return record.booted !== undefined
  } catch {
    return false
  }
}

export interface BuildOptions {
  readonly home?: string | undefined
  readonly jobs?: number | undefined
  readonly progress?: Progress
  readonly signal?: AbortSignal
  /** Boots it, before it is preferred; replaced in tests. */
  readonly check?: (kernel: string, signal?: AbortSignal) => Promise<BootCheck>
}

export async function buildTunedKernel(options: BuildOptions = {}): Promise<string> {
  const { progress = () => {}, check = checkKernelBoots } = options
  const folder = kernelsFolder(options.home)
  const done = tunedKernel(folder)
  if (done !== undefined) return done
  requireTools()
  return withFolderLock(
    folder,
    async () => {
      const config = tunedConfig()
      const hash = configHash(config)
      // One place for every configuration: make knows what a changed setting touches, but starts anew in a renamed folder.
      const work = join(folder, 'build')
      mkdirSync(work, { recursive: true })
      const source = await fetchSource(work, options)
      const vmlinux = await compile(source.path, config, options)
      // One that an earlier version made without booting it.
      rmSync(join(folder, `tuned-${hash}`), { recursive: true, force: true })
      const entry = await createEntry(folder, `tuned-${hash}`, async path => {
        progress('Stripping')
        await runTool('strip', ['-o', join(path, 'vmlinux'), vmlinux], { package: 'binutils', code: 'BUILD' })
        const kernel = parseKernel(readFileSync(join(path, 'vmlinux')))
        if (kernel.pvhEntry === undefined) throw new KernelError('BUILD', 'the kernel that was built has no PVH entry')
        copyFileSync(join(source.path, '.config'), join(path, 'config'))
        progress('Booting it once')
        const booted = await check(join(path, 'vmlinux'), options.signal)
        const record: KernelRecord = { ...source.record, source: 'tuned', booted }
        writeFileSync(join(path, 'kernel.json'), `${JSON.stringify(record, undefined, 2)}\n`)
      })
      rmSync(work, { recursive: true })
      return entry
    },
    () => progress('Waiting for another process that is at work on kernels'),
  )
}

function requireTools(): void {
  const missing = NEEDED.filter(([file]) => !existsSync(file)).map(([, name]) => name)
  if (missing.length > 0) {
    throw new KernelError('NO_TOOL', `building a kernel needs more programs: apt-get install ${missing.join(' ')}`)
  }
}

interface Source {
  readonly path: string
  readonly record: Omit<KernelRecord, 'source'>
}

/** The unpacked source, which is complete when `source.json` is there. */
async function fetchSource(work: string, { progress = () => {}, signal }: BuildOptions): Promise<Source> {
  const path = join(work, SOURCE_PACKAGE)
  const marker = join(work, 'source.json')
  if (existsSync(marker)) {
    progress('Going on with the source that is there')
    return { path, record: JSON.parse(readFileSync(marker, 'utf8')) as Source['record'] }
  }
  rmSync(work, { recursive: true })
  mkdirSync(work, { recursive: true })
  const tool = { package: 'apt', code: 'DOWNLOAD', cwd: work, ...(signal ? { signal } : {}) } as const
  progress(`Fetching ${SOURCE_PACKAGE}`)
  await runTool('apt-get', ['download', SOURCE_PACKAGE], tool)
  const deb = readdirSync(work).find(name => name.endsWith('.deb'))
  if (deb === undefined) throw new KernelError('DOWNLOAD', `apt-get download ${SOURCE_PACKAGE} left no package`)
  const sha256 = await sha256OfFile(join(work, deb))
  progress('Unpacking the source')
  await unpackDeb(join(work, deb), join(work, 'package'))
  const archive = join(work, 'package', 'usr', 'src', `${SOURCE_PACKAGE}.tar.xz`)
  await runTool('tar', ['-xJf', archive, '-C', work], { ...tool, package: 'tar', code: 'BUILD' })
  rmSync(join(work, 'package'), { recursive: true })
  rmSync(join(work, deb))
  const version = deb.split('_')[1] ?? 'unknown'
  const release = await runTool('make', ['-s', 'kernelversion'], { ...tool, package: 'make', code: 'BUILD', cwd: path })
  const record = { release: release.trim(), version, package: SOURCE_PACKAGE, sha256 }
  writeFileSync(`${marker}.new`, JSON.stringify(record))
  renameSync(`${marker}.new`, marker)
  return { path, record }
}

/** `make` goes on where it stopped, so an interrupted build is resumed by building again. */
async function compile(path: string, config: string, options: BuildOptions): Promise<string> {
  const { progress = () => {}, signal, jobs = availableParallelism() } = options
  const tool = { package: 'make', code: 'BUILD', cwd: path, ...(signal ? { signal } : {}) } as const
  // The build must not depend on when and by whom: the same configuration gives the same kernel.
  const env = { KBUILD_BUILD_USER: 'vitrine', KBUILD_BUILD_HOST: 'vitrine', KBUILD_BUILD_TIMESTAMP: '@0' }
  const fragment = join(path, 'vitrine.config')
  if (!existsSync(join(path, '.config')) || readFileSync(fragment, 'utf8') !== config) {
    progress('Configuring')
    writeFileSync(fragment, config)
    await runTool('make', ['allnoconfig'], { ...tool, env: { ...env, KCONFIG_ALLCONFIG: fragment } })
  }
  const refused = checkConfig(config, readFileSync(join(path, '.config'), 'utf8'))
  if (refused.length > 0) {
    throw new KernelError('BUILD', `this kernel source does not take ${refused.join(', ')}: mend guest/kernel.config`)
  }
  let steps = 0
  const onLine = (line: string): void => {
    if (!/^ {2}(CC|AS|LD|AR) /.test(line)) return
    steps++
    if (steps % 25 === 0) progress(`Compiling ${Math.min(99, Math.floor((100 * steps) / EXPECTED_STEPS))} %`)
  }
  await runTool('make', [`-j${jobs}`, 'vmlinux'], { ...tool, env, onLine })
  return join(path, 'vmlinux')
}
