/** Streams that something happened to on the way: bytes changed, dropped, doubled, moved; frames rewritten with right checksums. */
import type { Random } from '../../qcow2/testing/random.ts'
import { FRAME_BYTES, STREAM_HEAD_BYTES } from '../stream-format.ts'

/** Where each frame starts, for streams that are whole. */
export function frameOffsets(stream: Buffer): number[] {
  const offsets: number[] = []
  for (let at = STREAM_HEAD_BYTES; at + FRAME_BYTES <= stream.length; at += FRAME_BYTES + stream.readUInt32LE(at + 4))
    offsets.push(at)
  return offsets
}

/** A copy that differs from `stream`. */
export function damageStream(stream: Buffer, random: Random): Buffer {
  for (;;) {
    const damaged = damageOnce(stream, random)
    if (damaged.compare(stream) !== 0) return damaged
  }
}

function damageOnce(stream: Buffer, random: Random): Buffer {
  const copy = Buffer.from(stream)
  const frames = frameOffsets(stream)
  const frame = frames[random.below(frames.length)]!
  const next = frames[frames.indexOf(frame) + 1] ?? stream.length
  switch (random.below(7)) {
    case 0: // one bit, anywhere
      copy[random.below(copy.length)]! ^= 1 << random.below(8)
      return copy
    case 1: // one field of a frame's head, small or huge
      copy.writeUInt32LE(
        [0, 1, 0xffffffff, 0x7fffffff, random.below(2 ** 24)][random.below(5)]!,
        frame + [0, 4, 8, 12, 16, 20][random.below(6)]!,
      )
      return copy
    case 2: // a frame is missing
      return Buffer.concat([copy.subarray(0, frame), copy.subarray(next)])
    case 3: // a frame comes twice
      return Buffer.concat([copy.subarray(0, next), copy.subarray(frame, next), copy.subarray(next)])
    case 4: // two frames change places
      return Buffer.concat([copy.subarray(0, frame), copy.subarray(next), copy.subarray(frame, next)])
    case 5: // the end is missing
      return copy.subarray(0, random.below(copy.length))
    default: {
      // a run of bytes from elsewhere
      const length = 1 + random.below(64)
      const from = random.below(copy.length - length)
      stream.copy(copy, random.below(copy.length - length), from, from + length)
      return copy
    }
  }
}
