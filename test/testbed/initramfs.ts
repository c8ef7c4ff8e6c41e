/** The emulated host's initramfs: busybox, the modules in loading order, and init.sh. */
import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { basename, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { TestbedError } from './errors.ts'

const INIT = fileURLToPath(new URL('init.sh', import.meta.url))
const APPLETS = ['sh', 'mount', 'insmod', 'mkdir', 'switch_root', 'ifconfig', 'echo']

/** Writes the initramfs to `output`. It is left uncompressed: decompressing costs the emulated host more than reading. */
export function writeInitramfs(output: string, busybox: string, modules: readonly string[], scratch: string): void {
  const root = mkdtempSync(join(scratch, 'initramfs-'))
  try {
    for (const folder of ['bin', 'dev', 'proc', 'sys', 'lower', 'upper', 'new', 'modules'])
      mkdirSync(join(root, folder))
    copyFileSync(busybox, join(root, 'bin/busybox'))
    chmodSync(join(root, 'bin/busybox'), 0o755)
    for (const applet of APPLETS) symlinkSync('busybox', join(root, 'bin', applet))
    for (const module of modules) copyFileSync(module, join(root, 'modules', basename(module)))
    writeFileSync(join(root, 'modules/order'), modules.map(module => `${basename(module)}\n`).join(''))
    copyFileSync(INIT, join(root, 'init'))
    chmodSync(join(root, 'init'), 0o755)
    const names = readdirSync(root, { recursive: true, encoding: 'utf8' })
    const packed = spawnSync('cpio', ['-o', '-H', 'newc', '-R', '0:0', '--quiet', '-F', output], {
      cwd: root,
      input: `${names.join('\n')}\n`,
    })
    if (packed.status !== 0)
      throw new TestbedError('unavailable', `cpio: ${packed.error?.message ?? packed.stderr.toString()}`)
  } finally {
    rmSync(root, { recursive: true })
  }
}
