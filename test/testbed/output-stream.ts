/**
 * One output stream of the emulated host: the bytes of one command after another, each ended by a record separator, the
 * command's name and its exit status. Bytes are passed on as they come, but for those that may begin such a mark.
 */
const SEPARATOR = 0x1e
/** The mark is the separator, a name of 16 letters, a space, up to three digits and a newline. */
const LONGEST_MARK = 24

export class OutputStream {
  #pending: Buffer = Buffer.alloc(0)
  #name = ''
  #onBytes: (bytes: Buffer) => void = () => {}
  #onEnd: (status: number) => void = () => {}

  /** Begins the output of the command `name`. */
  begin(name: string, onBytes: (bytes: Buffer) => void, onEnd: (status: number) => void): void {
    this.#name = name
    this.#onBytes = onBytes
    this.#onEnd = onEnd
  }

  push(chunk: Buffer): void {
    let bytes = this.#pending.length > 0 ? Buffer.concat([this.#pending, chunk]) : chunk
    this.#pending = Buffer.alloc(0)
    for (;;) {
      const at = bytes.indexOf(SEPARATOR)
      this.#give(at < 0 ? bytes : bytes.subarray(0, at))
      if (at < 0) return
      bytes = bytes.subarray(at)
      const end = bytes.indexOf(0x0a)
      if (end < 0 && bytes.length < LONGEST_MARK) {
        this.#pending = bytes
        return
      }
      const mark = /^([0-9a-f]+) (\d+)$/.exec(bytes.toString('latin1', 1, Math.max(end, 1)))
      if (mark?.[1] === this.#name) {
        bytes = bytes.subarray(end + 1)
        this.#onEnd(Number(mark[2]))
      } else {
        // The command itself printed a separator.
        this.#give(bytes.subarray(0, 1))
        bytes = bytes.subarray(1)
      }
    }
  }

  #give(bytes: Buffer): void {
    if (bytes.length > 0) this.#onBytes(bytes)
  }
}
