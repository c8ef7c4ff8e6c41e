/** Removing files and folders where somebody waits: `rmSync` loads code of its own for it, and looks at everything twice. */
import { readdirSync, rmdirSync, unlinkSync } from 'node:fs'
import { join } from 'node:path'

const isAbsent = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ENOENT'

/** Removes a file; no effect when there is none. */
export function removeFile(path: string): void {
  try {
    unlinkSync(path)
  } catch (error) {
    if (!isAbsent(error)) throw error
  }
}

/** Somebody may put something in while it is emptied, but not for ever. */
const ATTEMPTS = 10

/** Removes a folder with all that is in it, also while another process does the same. */
export function removeFolder(path: string, attempts = ATTEMPTS): void {
  try {
    for (const entry of readdirSync(path, { withFileTypes: true })) {
      const inner = join(path, entry.name)
      if (entry.isDirectory()) removeFolder(inner)
      else removeFile(inner)
    }
    rmdirSync(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOTEMPTY' && attempts > 1) removeFolder(path, attempts - 1)
    else if (!isAbsent(error)) throw error
  }
}
