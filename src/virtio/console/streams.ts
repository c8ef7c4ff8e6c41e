/** A console's two descriptors with Node streams at their other ends, for the main thread. */
import { Socket } from 'node:net'
import type { Readable, Writable } from 'node:stream'
import { closeFd } from '../../host/file.ts'
import { check, sys } from '../../host/libc.ts'

const O_NONBLOCK = 0o4000
const O_CLOEXEC = 0o2000000

export interface ConsoleStreams {
  /** For `ConsoleOptions`. */
  readonly inputFd: number
  readonly outputFd: number
  /** What the guest prints, and what it reads. */
  readonly output: Readable
  readonly input: Writable
  /** After the device has ended. */
  close(): void
}

function pipe(): [reader: number, writer: number] {
  const ends = new Int32Array(2)
  // Safe: two ints are written to an array of two.
  check(sys.pipe2(ends, O_NONBLOCK | O_CLOEXEC), 'pipe2')
  return [ends[0]!, ends[1]!]
}

export function createConsoleStreams(): ConsoleStreams {
  const [inputFd, inputWriter] = pipe()
  const [outputReader, outputFd] = pipe()
  const input = new Socket({ fd: inputWriter, readable: false, writable: true })
  const output = new Socket({ fd: outputReader, readable: true, writable: false })
  return {
    inputFd,
    outputFd,
    input,
    output,
    close: () => {
      input.destroy()
      output.destroy()
      closeFd(inputFd)
      closeFd(outputFd)
    },
  }
}
