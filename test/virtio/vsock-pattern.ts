/** The pattern of vsock-load.c, on the host's side. */
import { Readable } from 'node:stream'

const PATTERN = 1_000_003
const CHUNK = 256 * 1024

const pattern = Buffer.alloc(PATTERN + CHUNK)
let state = 0x12345678
for (let i = 0; i < PATTERN; i++) {
  state ^= state << 13
  state ^= state >>> 17
  state ^= state << 5
  pattern[i] = state
}
// The beginning once more behind the end, so that any chunk is one slice.
pattern.copy(pattern, PATTERN, 0, CHUNK)

/** `bytes` of the pattern as a stream. */
export function patternStream(bytes: number): Readable {
  let done = 0
  return new Readable({
    highWaterMark: CHUNK,
    read() {
      if (done >= bytes) {
        this.push(null)
        return
      }
      const at = done % PATTERN
      const length = Math.min(CHUNK, bytes - done)
      done += length
      this.push(pattern.subarray(at, at + length))
    },
  })
}

/** Checks chunks as they come. */
export class PatternCheck {
  bytes = 0
  badAt = -1

  take(chunk: Buffer): void {
    for (let from = 0; from < chunk.length; ) {
      const at = this.bytes % PATTERN
      const length = Math.min(chunk.length - from, CHUNK)
      const good = chunk.compare(pattern, at, at + length, from, from + length) === 0
      if (!good && this.badAt < 0) this.badAt = this.bytes
      this.bytes += length
      from += length
    }
  }

  get verdict(): string {
    return this.badAt < 0 ? `GOOD ${this.bytes}` : `BAD near ${this.badAt}`
  }
}
