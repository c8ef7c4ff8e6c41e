/** A python3 for the guest's initramfs, unpacked from Debian's packages once and kept. */
import { spawnSync } from 'node:child_process'
import { existsSync, lstatSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, relative } from 'node:path'

const VERSION = '3.11'
const PACKAGES = [`python${VERSION}-minimal`, `libpython${VERSION}-minimal`, 'libc6', 'libexpat1', 'zlib1g']
/** Shared libraries that it needs; links among them are followed, so that a file of each name is there. */
const LIBRARIES = ['ld-linux-x86-64.so.2', 'libc.so.6', 'libm.so.6', 'libz.so.1', 'libexpat.so.1']

export const PYTHON = `/usr/bin/python${VERSION}`

export type GuestFiles = Record<string, { readonly content: Uint8Array; readonly mode?: number }>

function run(command: string, args: readonly string[], cwd: string): void {
  const { status, error, stderr } = spawnSync(command, args, { cwd, encoding: 'utf8' })
  if (status !== 0) throw new Error(`${command} ${args.join(' ')} failed: ${error?.message ?? stderr.slice(-300)}`)
}

function unpacked(): string {
  const root = join(homedir(), '.cache', 'vitrine-bench', `python-${VERSION}`)
  if (existsSync(root)) return root
  mkdirSync(join(root, '..'), { recursive: true })
  const folder = mkdtempSync(`${root}-`)
  try {
    run('apt-get', ['download', ...PACKAGES], folder)
    for (const name of readdirSync(folder)) {
      if (name.endsWith('.deb')) run('dpkg-deb', ['-x', name, 'root'], folder)
    }
    renameSync(join(folder, 'root'), root)
  } finally {
    rmSync(folder, { recursive: true })
  }
  return root
}

/** The files of a python3, by their path in the guest. */
export function pythonFiles(): GuestFiles {
  const root = unpacked()
  const libraries = ['usr/lib', 'lib'].map(folder => join(root, folder, 'x86_64-linux-gnu'))
  const files: GuestFiles = { [PYTHON.slice(1)]: { content: readFileSync(join(root, PYTHON)), mode: 0o755 } }
  for (const name of LIBRARIES) {
    const path = libraries.map(folder => join(folder, name)).find(existsSync)
    if (path === undefined) throw new Error(`${PACKAGES.join(', ')} have no ${name}`)
    const file = { content: readFileSync(path), mode: 0o755 }
    files[`lib/x86_64-linux-gnu/${name}`] = file
    if (name.startsWith('ld-')) files[`lib64/${name}`] = file
  }
  const modules = join(root, 'usr/lib', `python${VERSION}`)
  for (const name of readdirSync(modules, { recursive: true }) as string[]) {
    const path = join(modules, name)
    if (lstatSync(path).isFile()) files[relative(root, path)] = { content: readFileSync(path) }
  }
  return files
}
