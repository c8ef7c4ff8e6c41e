/**
 * Kernel modules and what they need. Packages come without modules.dep (depmod makes it at installation), so dependencies
 * are read from the modules themselves: the `.modinfo` section is a list of `key=value` strings.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { basename, join } from 'node:path'
import { compressionOf, decompress } from '../../machine/boot/decompress/decompress.ts'
import { KernelError } from './errors.ts'

const MAX_MODULE_SIZE = 64 * 1024 * 1024
const MODULE_FILE = /\.ko(\.(xz|zst|gz))?$/

export interface KernelModule {
  readonly name: string
  readonly path: string
  /** Names of the modules that have to be there first. */
  readonly depends: readonly string[]
}

/** Modules are named with either of - and _; the kernel shows _. */
const canonical = (name: string): string => name.replaceAll('-', '_')

export class ModuleIndex {
  readonly #paths = new Map<string, string>()
  readonly #builtin = new Set<string>()

  /** `folder` is `lib/modules/<release>`. */
  constructor(folder: string) {
    const kernel = join(folder, 'kernel')
    if (!existsSync(kernel)) throw new KernelError('NO_MODULE', `there are no modules in ${folder}`)
    for (const entry of readdirSync(kernel, { recursive: true, withFileTypes: true })) {
      if (!entry.isFile() || !MODULE_FILE.test(entry.name)) continue
      this.#paths.set(canonical(entry.name.replace(MODULE_FILE, '')), join(entry.parentPath, entry.name))
    }
    const builtin = join(folder, 'modules.builtin')
    if (!existsSync(builtin)) return
    for (const line of readFileSync(builtin, 'utf8').split('\n')) {
      if (line) this.#builtin.add(canonical(basename(line).replace(MODULE_FILE, '')))
    }
  }

  get size(): number {
    return this.#paths.size
  }

  /** The named modules and all that they need, in an order in which they can be loaded. Built-in ones are left out. */
  loadOrder(names: readonly string[]): KernelModule[] {
    const order = new Map<string, KernelModule>()
    const inProgress = new Set<string>()
    const visit = (name: string, neededBy: string): void => {
      const key = canonical(name)
      if (order.has(key) || (this.#builtin.has(key) && !this.#paths.has(key))) return
      if (inProgress.has(key)) throw new KernelError('NO_MODULE', `the modules ${key} and ${neededBy} need each other`)
      const path = this.#paths.get(key)
      if (path === undefined) {
        throw new KernelError('NO_MODULE', `this kernel has no module '${name}' (needed by ${neededBy})`)
      }
      inProgress.add(key)
      const depends = dependenciesOf(readModule(path), path)
      for (const other of depends) visit(other, key)
      inProgress.delete(key)
      order.set(key, { name: key, path, depends })
    }
    for (const name of names) visit(name, 'the machine')
    return [...order.values()]
  }
}

/** The module's ELF file, decompressed. */
export function readModule(path: string): Uint8Array {
  const bytes = readFileSync(path)
  const kind = compressionOf(bytes)
  return kind ? decompress(kind, bytes, MAX_MODULE_SIZE) : bytes
}

const SIGNATURE_END = Buffer.from('~Module signature appended~\n')
/** The last four bytes of `struct module_signature` are the signature's length, big-endian. */
const SIGNATURE_INFO = 12

/**
 * The module without what makes loading it slow and is of no use in a guest: its signature, which nobody could check there, and its BTF,
 * for which the kernel would first parse its own. One that registers functions for BPF programs refuses to load without, and keeps it.
 */
export function trimModule(module: Uint8Array, path: string): Uint8Array {
  const trimmed = Uint8Array.from(withoutSignature(module))
  const { sections, view } = sectionsOf(trimmed, path)
  const btf = sections.find(({ name }) => name === '.BTF')
  // Nameless, it is not found.
  if (btf && !sections.some(({ name }) => name === '.BTF_ids')) view.setUint32(btf.header, 0, true)
  return trimmed
}

function withoutSignature(module: Uint8Array): Uint8Array {
  const end = module.length - SIGNATURE_END.length
  const info = end - SIGNATURE_INFO
  if (info < 0 || SIGNATURE_END.compare(module.subarray(end)) !== 0) return module
  const length = new DataView(module.buffer, module.byteOffset + info + 8, 4).getUint32(0)
  return length <= info ? module.subarray(0, info - length) : module
}

export function dependenciesOf(module: Uint8Array, path: string): string[] {
  const info = modinfo(module, path)
  return (info.get('depends') ?? '').split(',').filter(name => name !== '')
}

function modinfo(module: Uint8Array, path: string): Map<string, string> {
  const { sections } = sectionsOf(module, path)
  const found = sections.find(({ name }) => name === '.modinfo')
  if (!found || found.end > module.length) throw noModule(path)
  const strings = Buffer.from(module.subarray(found.start, found.end)).toString('latin1').split('\0')
  return new Map(
    strings.filter(Boolean).map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
  )
}

const noModule = (path: string): KernelError => new KernelError('NO_MODULE', `${path} is not a kernel module`)

interface Section {
  readonly name: string
  /** Where its header is; the name's index comes first in it. */
  readonly header: number
  readonly start: number
  readonly end: number
}

/** The section headers of a 64-bit ELF file, their names read. */
function sectionsOf(module: Uint8Array, path: string): { sections: Section[]; view: DataView } {
  if (module.length < 64 || module[0] !== 0x7f || module[4] !== 2) throw noModule(path)
  const view = new DataView(module.buffer, module.byteOffset, module.byteLength)
  const headers = Number(view.getBigUint64(40, true))
  const size = view.getUint16(58, true)
  const count = view.getUint16(60, true)
  const namesIndex = view.getUint16(62, true)
  if (size < 64 || headers + count * size > module.length || namesIndex >= count) throw noModule(path)
  const range = (index: number): { start: number; end: number } => {
    const at = headers + index * size
    const start = Number(view.getBigUint64(at + 24, true))
    return { start, end: start + Number(view.getBigUint64(at + 32, true)) }
  }
  const names = range(namesIndex)
  if (names.end > module.length) throw noModule(path)
  const text = Buffer.from(module.subarray(names.start, names.end)).toString('latin1')
  const sections = Array.from({ length: count }, (_, index) => {
    const header = headers + index * size
    const at = view.getUint32(header, true)
    const name = text.slice(at, Math.max(at, text.indexOf('\0', at)))
    return { name, header, ...range(index) }
  })
  return { sections, view }
}
