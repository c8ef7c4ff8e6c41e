/** A file system of a few MiB, to be filled: tmpfs, for those who may mount. */
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Why there can be no such file system here, or false. */
export const smallFsMissing: string | false = (() => {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-mount-'))
  try {
    mountSmallFs(folder, 1)
    unmountSmallFs(folder)
    return false
  } catch {
    return 'mounting a tmpfs is not allowed here'
  } finally {
    rmSync(folder, { recursive: true })
  }
})()

export function mountSmallFs(folder: string, mebibytes: number): void {
  mkdirSync(folder, { recursive: true })
  execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${mebibytes}m`, 'none', folder], { stdio: 'pipe' })
}

export function unmountSmallFs(folder: string): void {
  execFileSync('umount', [folder], { stdio: 'pipe' })
}
