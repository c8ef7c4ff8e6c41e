/** Positional reads that go on until the buffer is full or the file ends. */
import { readSync } from 'node:fs'

export function readFully(fd: number, target: Uint8Array, position: number): number {
  let done = 0
  while (done < target.length) {
    const n = readSync(fd, target, done, target.length - done, position + done)
    if (n === 0) break
    done += n
  }
  return done
}
