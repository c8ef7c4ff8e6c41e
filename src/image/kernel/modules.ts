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

export function dependenciesOf(module: Uint8Array, path: string): string[] {
  const info = modinfo(module, path)
  return (info.get('depends') ?? '').split(',').filter(name => name !== '')
}

function modinfo(module: Uint8Array, path: string): Map<string, string> {
  const bad = new KernelError('NO_MODULE', `${path} is not a kernel module`)
  if (module.length < 64 || module[0] !== 0x7f || module[4] !== 2) throw bad
  const view = new DataView(module.buffer, module.byteOffset, module.byteLength)
  const sections = Number(view.getBigUint64(40, true))
  const size = view.getUint16(58, true)
  const count = view.getUint16(60, true)
  const namesIndex = view.getUint16(62, true)
  if (size < 64 || sections + count * size > module.length || namesIndex >= count) throw bad
  const range = (index: number): [start: number, end: number] => {
    const at = sections + index * size
    const start = Number(view.getBigUint64(at + 24, true))
    return [start, start + Number(view.getBigUint64(at + 32, true))]
  }
  const [namesStart, namesEnd] = range(namesIndex)
  if (namesEnd > module.length) throw bad
  for (let i = 0; i < count; i++) {
    const nameAt = namesStart + view.getUint32(sections + i * size, true)
    if (Buffer.from(module.subarray(nameAt, nameAt + 9)).toString('latin1') !== '.modinfo\0') continue
    const [start, end] = range(i)
    if (end > module.length) throw bad
    const strings = Buffer.from(module.subarray(start, end)).toString('latin1').split('\0')
    return new Map(
      strings.filter(Boolean).map(line => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)]),
    )
  }
  throw bad
}
