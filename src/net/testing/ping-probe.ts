/** Run in a network namespace of the test's own: two echo requests of a guest to loopback addresses; prints what came back. */
import { parseAddress } from '../addresses.ts'
import { invert, pseudoSum, sumBytes } from '../checksum.ts'
import { GUEST4, GUEST6 } from '../description.ts'
import { writeHeaders } from '../writer.ts'
import { RawGuest } from './raw-guest.ts'

const MACS = { guest: Uint8Array.from([0x52, 0x55, 10, 0, 2, 2]), gateway: Uint8Array.from([2, 0, 0, 0, 0, 1]) }

function echoFrame(source: Uint8Array, target: Uint8Array, six: boolean): Uint8Array {
  const text = new TextEncoder().encode('anybody there?')
  const bytes = new Uint8Array((six ? 54 : 34) + 8 + text.length)
  const view = new DataView(bytes.buffer)
  const at = writeHeaders(bytes, view, MACS, source, target, six ? 58 : 1, 8 + text.length, 64)
  bytes[at] = six ? 128 : 8
  view.setUint16(at + 4, 0x1234)
  view.setUint16(at + 6, 7)
  bytes.set(text, at + 8)
  const start = six ? pseudoSum(source, target, 58, 8 + text.length) : 0
  view.setUint16(at + 2, invert(sumBytes(bytes, at, 8 + text.length, start)))
  return bytes
}

const guest = new RawGuest({ policy: { allow: ['127.0.0.0/8', '::1'] }, resolvers: ['127.0.0.1'] })
guest.frame(echoFrame(GUEST4, parseAddress('127.0.0.1'), false))
guest.frame(echoFrame(GUEST6, parseAddress('::1'), true))
const frames: Uint8Array[] = []
await guest.turn(() => {
  frames.push(...guest.frames())
  return frames.length >= 2
})
const answers = frames.map(frame => {
  const six = frame[12] === 0x86
  const at = six ? 54 : 34
  const view = new DataView(frame.buffer, frame.byteOffset)
  const start = six ? pseudoSum(frame.subarray(22, 38), frame.subarray(38, 54), 58, frame.length - at) : 0
  return {
    six,
    type: frame[at],
    id: view.getUint16(at + 4),
    sequence: view.getUint16(at + 6),
    text: Buffer.from(frame.subarray(at + 8)).toString('latin1'),
    checksum: sumBytes(frame, at, frame.length - at, start) === 0xffff,
  }
})
const { pings, pingsRefused } = guest.stack.core.counters
guest.close()
console.log(JSON.stringify({ answers, pings, pingsRefused }))
