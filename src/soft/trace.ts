/** `--trace`: a line an instruction or a line an access, to a descriptor, from inside a vCPU's worker. */
import { writeSync } from 'node:fs'
import type { CpuRegisters, IoHandler } from '../accel/contract.ts'

const NAMES = 'rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15'.split(' ')
const STDERR = 2

const hex = (value: bigint | number): string => value.toString(16)

/** Lines are gathered, because a write a line would be most of the time. */
export class TraceOutput {
  #text = ''
  readonly #fd: number

  constructor(fd = STDERR) {
    this.#fd = fd
  }

  line(text: string): void {
    this.#text += `${text}\n`
    if (this.#text.length > 32_768) this.flush()
  }

  flush(): void {
    let bytes = Buffer.from(this.#text)
    this.#text = ''
    while (bytes.length > 0) {
      try {
        bytes = bytes.subarray(writeSync(this.#fd, bytes))
      } catch (error) {
        // A pipe that is full, or whose reader has gone: tracing must not end the machine.
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return
      }
    }
  }
}

/** What an instruction did: where it was, its bytes, and the registers that it changed. */
export function instructionLine(
  index: number,
  privilege: number,
  before: CpuRegisters,
  after: CpuRegisters,
  code: Uint8Array,
): string {
  const changes = NAMES.flatMap((name, register) =>
    before.general[register] === after.general[register] ? [] : [`${name}=${hex(after.general[register]!)}`],
  )
  if (before.rflags !== after.rflags) changes.push(`rflags=${hex(after.rflags)}`)
  // The bytes that belong to it are known when the next instruction follows; else show what there is.
  const length = Number(after.rip - before.rip)
  const shown = Buffer.from(length > 0 && length <= code.length ? code.subarray(0, length) : code.subarray(0, 8))
  return `cpu${index} ${privilege} ${hex(before.rip).padStart(16, '0')}: ${shown.toString('hex').padEnd(22)} ${changes.join(' ')}`
}

/** An IoHandler that tells every access. */
export function tracedIo(io: IoHandler, index: number, output: TraceOutput): IoHandler {
  const value = (data: DataView, size: number): string => {
    let text = ''
    for (let at = size - 1; at >= 0; at--) text += data.getUint8(at).toString(16).padStart(2, '0')
    return text
  }
  return {
    portRead(port, size) {
      const result = io.portRead(port, size)
      output.line(`cpu${index} in  ${hex(port)}/${size} = ${hex(result >>> 0)}`)
      return result
    },
    portWrite(port, size, data) {
      output.line(`cpu${index} out ${hex(port)}/${size} = ${hex(data)}`)
      io.portWrite(port, size, data)
    },
    mmioRead(address, size, data) {
      io.mmioRead(address, size, data)
      output.line(`cpu${index} load  ${hex(address)}/${size} = ${value(data, size)}`)
    },
    mmioWrite(address, size, data) {
      output.line(`cpu${index} store ${hex(address)}/${size} = ${value(data, size)}`)
      io.mmioWrite(address, size, data)
    },
    get stopRequested() {
      return io.stopRequested
    },
  }
}
