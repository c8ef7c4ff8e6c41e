/** Size, time and inode of a file: a file that was touched, replaced or cut has another stamp, seen without reading it. */
import { type BigIntStats, fstatSync, statSync } from 'node:fs'

const stampFrom = (stat: BigIntStats): string => `${stat.size}:${stat.mtimeNs}:${stat.ino}`

export const stampOfFd = (fd: number): string => stampFrom(fstatSync(fd, { bigint: true }))

/** Undefined when there is no such file. */
export function stampOf(path: string): string | undefined {
  const stat = statSync(path, { bigint: true, throwIfNoEntry: false })
  return stat && stampFrom(stat)
}
