/** Finding, fetching and unpacking kernels, with apt replaced by a stand-in; packages are made by dpkg-deb, modules by gcc. */
import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { bzImageFixture, elfFixture } from '../../machine/boot/kernel-fixtures.ts'
import { assemble, POWER_OFF } from '../../machine/micro-programs.ts'
import { checkKernelBoots } from './boot-check.ts'
import { checkConfig, parseConfig } from './config.ts'
import { sha256OfFile, unpackDebOurselves } from './deb.ts'
import { ensureDebianKernel } from './debian.ts'
import { KernelError } from './errors.ts'
import { findKernel, KERNEL_VARIABLE } from './find.ts'
import { dependenciesOf, ModuleIndex, trimModule } from './modules.ts'
import type { runTool } from './run-tool.ts'
import { configHash, tunedConfig, tunedKernel } from './tuned.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-kernel-'))
afterAll(() => rmSync(folder, { recursive: true }))

const RELEASE = '6.1.0-99-cloud-amd64'
const NAME = `linux-image-${RELEASE}`
const elf = elfFixture({ pvhEntry: 0x10_0000 })

function compileModule(path: string, name: string, depends: string): void {
  const source = join(folder, 'module.c')
  const lines = [`license=GPL`, `depends=${depends}`, `name=${name}`]
  const text = lines.map(
    (line, i) => `__attribute__((section(".modinfo"),used)) static const char m${i}[] = "${line}";`,
  )
  writeFileSync(source, text.join('\n'))
  execFileSync('gcc', ['-c', '-o', path, source])
}

let deb: string
let sha256: string

beforeAll(async () => {
  const root = join(folder, 'package')
  const modules = join(root, 'lib/modules', RELEASE)
  mkdirSync(join(root, 'DEBIAN'), { recursive: true })
  mkdirSync(join(root, 'boot'))
  mkdirSync(join(modules, 'kernel/drivers/net'), { recursive: true })
  writeFileSync(
    join(root, 'DEBIAN/control'),
    `Package: ${NAME}\nVersion: 6.1.999-1\nArchitecture: amd64\nMaintainer: nobody <nobody@localhost>\nDescription: test\n`,
  )
  writeFileSync(join(root, 'boot', `vmlinuz-${RELEASE}`), bzImageFixture(gzipSync(elf)))
  writeFileSync(join(root, 'boot', `config-${RELEASE}`), 'CONFIG_64BIT=y\n')
  writeFileSync(join(modules, 'modules.builtin'), 'kernel/lib/crc.ko\n')
  compileModule(join(modules, 'kernel/base.ko'), 'base', '')
  compileModule(join(modules, 'kernel/drivers/mid-dle.ko'), 'mid_dle', 'base,crc')
  compileModule(join(modules, 'kernel/drivers/net/top.ko'), 'top', 'mid-dle,base')
  execFileSync('xz', ['--check=crc32', join(modules, 'kernel/drivers/net/top.ko')])
  deb = join(folder, 'kernel.deb')
  execFileSync('dpkg-deb', ['-Zxz', '--root-owner-group', '-b', root, deb], { stdio: 'ignore' })
  sha256 = await sha256OfFile(deb)
})

/** apt, as far as it is used here. */
function fakeApt(options: { fail?: boolean; sha256?: string } = {}): { run: typeof runTool; downloads: () => number } {
  let downloads = 0
  const run: typeof runTool = async (command, args, { cwd }) => {
    if (command === 'apt-cache' && args[0] === 'depends') return `linux-image-cloud-amd64\n  Depends: ${NAME}\n`
    if (command === 'apt-cache') return `Package: ${NAME}\nVersion: 6.1.999-1\nSHA256: ${options.sha256 ?? sha256}\n`
    downloads++
    const bytes = readFileSync(deb)
    writeFileSync(join(cwd!, `${NAME}_6.1.999-1_amd64.deb`), options.fail ? bytes.subarray(0, 1000) : bytes)
    if (options.fail) throw new KernelError('DOWNLOAD', 'apt-get download failed (status 100): Connection reset')
    return ''
  }
  return { run, downloads: () => downloads }
}

describe('Debian’s kernel', () => {
  it('is fetched once, by however many ask at the same time', async () => {
    const home = join(folder, 'once')
    const apt = fakeApt()
    const messages: string[] = []
    const paths = await Promise.all([
      ensureDebianKernel(home, message => messages.push(message), apt),
      ensureDebianKernel(home, () => {}, apt),
    ])
    expect(apt.downloads()).toBe(1)
    expect(new Set(paths).size).toBe(1)
    expect(await ensureDebianKernel(home, () => {}, apt)).toBe(paths[0])
    expect(apt.downloads()).toBe(1)
    expect(Buffer.compare(readFileSync(join(paths[0]!, 'vmlinux')), elf)).toBe(0)
    expect(JSON.parse(readFileSync(join(paths[0]!, 'kernel.json'), 'utf8'))).toMatchObject({ release: RELEASE, sha256 })
    expect(messages.join('\n')).toMatch(/Fetching.*\n.*Unpacking.*\n.*Decompressing/)
    expect(readdirSync(paths[0]!).sort()).toEqual(['config', 'kernel.json', 'modules', 'vmlinux'])
  })

  it('leaves nothing of a download that failed half-way, and can be fetched afterwards', async () => {
    const home = join(folder, 'half')
    const failed = ensureDebianKernel(home, () => {}, fakeApt({ fail: true }))
    await expect(failed).rejects.toMatchObject({
      code: 'DOWNLOAD',
      message: expect.stringMatching(/--kernel/) as string,
    })
    expect(readdirSync(home)).toEqual(['.lock'])
    expect(existsSync(await ensureDebianKernel(home, () => {}, fakeApt()))).toBe(true)
  })

  it('is refused when it is not what the index promised', async () => {
    const home = join(folder, 'wrong')
    const refused = ensureDebianKernel(home, () => {}, fakeApt({ sha256: '0'.repeat(64) }))
    await expect(refused).rejects.toMatchObject({ code: 'BAD_PACKAGE' })
    expect(readdirSync(home)).toEqual(['.lock'])
  })

  it('says what to do when apt knows none', async () => {
    const run: typeof runTool = async () => 'nothing\n'
    const none = ensureDebianKernel(join(folder, 'none'), () => {}, { run })
    await expect(none).rejects.toMatchObject({
      code: 'DOWNLOAD',
      message: expect.stringMatching(/apt-get update/) as string,
    })
  })

  it('goes where it may write, or says so', async () => {
    const file = join(folder, 'file')
    writeFileSync(file, '')
    await expect(ensureDebianKernel(join(file, 'x'), () => {}, fakeApt())).rejects.toMatchObject({ code: 'CACHE' })
  })
})

describe('packages', () => {
  it('are unpacked by ourselves as dpkg-deb does', () => {
    const ours = join(folder, 'ours')
    const theirs = join(folder, 'theirs')
    unpackDebOurselves(readFileSync(deb), ours)
    execFileSync('dpkg-deb', ['-x', deb, theirs])
    expect(execFileSync('diff', ['-r', ours, theirs], { encoding: 'utf8' })).toBe('')
  })

  it('that are damaged are refused', () => {
    const bytes = readFileSync(deb)
    const target = join(folder, 'damaged')
    expect(() => unpackDebOurselves(bytes.subarray(0, bytes.length >> 1), target)).toThrow(/cut short/)
    expect(() => unpackDebOurselves(new Uint8Array(100), target)).toThrow(/not an ar archive/)
    expect(() => unpackDebOurselves(bytes.subarray(0, 100), target)).toThrow(KernelError)
  })
})

describe('modules', () => {
  const index = () => new ModuleIndex(join(folder, 'package/lib/modules', RELEASE))

  it('come in an order in which they can be loaded, without built-in ones', () => {
    expect(
      index()
        .loadOrder(['top'])
        .map(module => module.name),
    ).toEqual(['base', 'mid_dle', 'top'])
    expect(index().loadOrder(['crc'])).toEqual([])
    expect(index().loadOrder(['mid_dle', 'mid-dle'])).toHaveLength(2)
  })

  it('lose their signature and their BTF, as readelf and objcopy see it', () => {
    const [plain, path] = [join(folder, 'plain.ko'), join(folder, 'signed.ko')]
    compileModule(plain, 'signed', '')
    const types = join(folder, 'types')
    writeFileSync(types, 'types of this module')
    const add = (section: string): void => void execFileSync('objcopy', ['--add-section', `${section}=${types}`, plain])
    add('.BTF')
    const sign = (): Buffer => {
      const signature = Buffer.alloc(99, 7)
      const info = Buffer.alloc(12)
      info.writeUInt32BE(signature.length, 8)
      return Buffer.concat([readFileSync(plain), signature, info, Buffer.from('~Module signature appended~\n')])
    }
    const sections = (bytes: Uint8Array): string => {
      writeFileSync(path, bytes)
      return execFileSync('readelf', ['-SW', path], { encoding: 'utf8' })
    }
    expect(sections(sign())).toContain('.BTF')
    const trimmed = trimModule(sign(), path)
    expect(trimmed).toHaveLength(statSync(plain).size)
    expect(sections(trimmed)).toContain('.modinfo')
    expect(sections(trimmed)).not.toContain('.BTF')
    expect(dependenciesOf(trimmed, path)).toEqual([])
    // One that is not signed is as long as before; one that names its functions to BPF keeps its types.
    expect(trimModule(readFileSync(plain), plain)).toHaveLength(trimmed.length)
    add('.BTF_ids')
    expect(sections(trimModule(sign(), path))).toMatch(/\.BTF\s/)
    expect(() => trimModule(Buffer.alloc(100), 'nothing')).toThrow(KernelError)
  })

  it('that are not there are named', () => {
    expect(() => index().loadOrder(['absent'])).toThrow(/no module 'absent'/)
    expect(() => new ModuleIndex(join(folder, 'nowhere'))).toThrow(KernelError)
  })
})

describe('findKernel', () => {
  const before = process.env[KERNEL_VARIABLE]
  afterEach(() => {
    if (before === undefined) delete process.env[KERNEL_VARIABLE]
    else process.env[KERNEL_VARIABLE] = before
  })

  it('takes the one that is given before the one in the environment', async () => {
    const path = join(folder, 'vmlinux')
    writeFileSync(path, elf)
    process.env[KERNEL_VARIABLE] = path
    expect(await findKernel()).toMatchObject({ path, source: 'given' })
    await expect(findKernel({ kernel: join(folder, 'nothing') })).rejects.toMatchObject({ code: 'NOT_FOUND' })
    process.env[KERNEL_VARIABLE] = join(folder, 'gone')
    await expect(findKernel()).rejects.toThrow(/named by VITRINE_KERNEL/)
  })
})

describe('the tuned configuration', () => {
  it('says each thing once, and only y, numbers or not set', () => {
    const lines = tunedConfig()
      .split('\n')
      .filter(line => line.startsWith('CONFIG_'))
    expect(new Set(lines.map(line => line.split('=')[0])).size).toBe(lines.length)
    for (const line of lines) expect(line).toMatch(/^CONFIG_\w+=(y|\d+)$/)
    const wanted = parseConfig(tunedConfig())
    for (const name of [
      'VIRTIO_MMIO',
      'VIRTIO_MMIO_CMDLINE_DEVICES',
      'EXT4_FS',
      'VIRTIO_VSOCKETS',
      'VIRTIO_FS',
      'PVH',
      'ACPI',
      // ACPI drops every table without it.
      'PCI',
    ]) {
      expect(wanted.get(`CONFIG_${name}`)).toBe('y')
    }
    expect(wanted.has('CONFIG_MODULES')).toBe(false)
  })

  it('is another kernel when a setting changes, not when a comment does', () => {
    const config = 'CONFIG_A=y\n# CONFIG_B is not set\n'
    expect(configHash(`# hello\n\n${config}`)).toBe(configHash(config))
    expect(configHash(config.replace('B is not', 'C is not'))).not.toBe(configHash(config))
    expect(configHash('CONFIG_A=y\n')).not.toBe(configHash(config))
  })

  it('finds settings that a kernel did not take', () => {
    const actual = 'CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_N=64\n'
    expect(checkConfig('CONFIG_A=y\n# CONFIG_B is not set\n# CONFIG_Z is not set\nCONFIG_N=64', actual)).toEqual([])
    expect(checkConfig('CONFIG_B=y\nCONFIG_X=y\nCONFIG_N=8', actual)).toEqual([
      'CONFIG_B=y',
      'CONFIG_X=y',
      'CONFIG_N=8',
    ])
  })
})

describe('a kernel that was built', () => {
  /** Prints `words` on COM1 and then executes `end`: lea rsi, [rip + n]; mov ecx, length; mov dx, 0x3f8; cld; rep outsb. */
  function kernelThatPrints(words: string, end: Uint8Array): string {
    const text = Buffer.from(words)
    const print = assemble('48 8d 35', [12 + end.length, 0, 0, 0], 'b9', [text.length, 0, 0, 0], '66 ba f8 03 fc f3 6e')
    const path = join(folder, 'built')
    writeFileSync(path, elfFixture({ segments: [{ address: 0x10_0000, content: Buffer.concat([print, end, text]) }] }))
    return path
  }

  it('is good when it comes to our init and powers off', async () => {
    const kernel = kernelThatPrints('vitrine-init: ready\n', POWER_OFF)
    expect(await checkKernelBoots(kernel)).toMatchObject({
      accelerator: expect.any(String),
      milliseconds: expect.any(Number),
    })
  })

  it('is refused, with its last words, when it does not', async () => {
    // UD2 without an interrupt table.
    await expect(checkKernelBoots(kernelThatPrints('Oops.', assemble('0f 0b')))).rejects.toThrow(
      /does not boot on \w+: vCPU 0 .*\. Debian's stays in use\. Its last words: Oops\./,
    )
    await expect(checkKernelBoots(kernelThatPrints('bye', POWER_OFF))).rejects.toThrow(/powered off.* last words: bye/)
  })

  it('is preferred only once it has been seen to boot', () => {
    const home = join(folder, 'tuned-home')
    const entry = join(home, `tuned-${configHash(tunedConfig())}`)
    mkdirSync(entry, { recursive: true })
    expect(tunedKernel(home)).toBeUndefined()
    writeFileSync(join(entry, 'kernel.json'), '{"source":"tuned"}')
    expect(tunedKernel(home)).toBeUndefined()
    writeFileSync(join(entry, 'kernel.json'), '{"source":"tuned","booted":{"accelerator":"soft","milliseconds":9}}')
    expect(tunedKernel(home)).toBe(entry)
  })
})
