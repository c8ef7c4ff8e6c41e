/** The size of what stat has no size for. */
import { check, sys } from './libc.ts'

const SEEK_END = 2

/** The end of a block device, in bytes. */
export const seekEnd = (fd: number): number => check(sys.lseek(fd, 0, SEEK_END), 'lseek')
