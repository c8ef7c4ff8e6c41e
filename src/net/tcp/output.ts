/**
 * What goes to the guest. Segments are decided when the card has room for one (`plan`) and made in its buffers
 * (`fill`): data goes from the host socket straight into guest memory, where it stays readable in the socket until the
 * guest has acknowledged it. So there is no send buffer here, and a guest that does not read stalls the host's sender.
 */
import { IoVector } from '../../host/io-vector.ts'
import { PeekReader, setPeekOffset } from '../../host/socket.ts'
import { isMapped } from '../addresses.ts'
import { invert, pseudoSum, sumVector } from '../checksum.ts'
import type { NetAlarm, NetCore } from '../core.ts'
import {
  ALL_OFFLOADS,
  GSO_NONE,
  GSO_TCPV4,
  GSO_TCPV6,
  type GuestOffloads,
  NEEDS_CHECKSUM,
  type OffloadHeader,
} from '../link.ts'
import { PROTOCOL_TCP } from '../packet.ts'
import { FrameWriter, HOP_LIMIT, writeHeaders } from '../writer.ts'
import {
  CLOSE_WAIT,
  CLOSED,
  CLOSING,
  ESTABLISHED,
  FIN_WAIT_1,
  LAST_ACK,
  NO_OFFSET,
  NOT_ASKED,
  SYN_SENT,
  type TcpFlow,
} from './flow.ts'
import { WINDOW } from './held-data.ts'
import { ACK, advance, distance, FIN, MAX_SACK, PSH, RST, SYN, TCP_HEADER } from './segment.ts'

/** Our window's scale: WINDOW must fit in 16 bits of it. */
export const OUR_SCALE = 7
const MAX_PAYLOAD = 65_535 - 60 - 60
/** Without an offset in the kernel all that is in flight is copied again by each peek. */
const MAX_SKIP = 1 << 18
const EAGAIN = 11
/** How long an acknowledgment waits for an answer that it can ride on, and what counts as a prompt one (RFC 9293, 3.8.6.3). */
export const PROMPT_MS = 0.5
/** How long the poll loop looks for that answer before it sleeps. */
const EAGER_MS = 0.1
const REMEMBERED = 256
/** For a sender that waits for our acknowledgment with more of its request (Nagle), waiting is in vain. */
const DISTRUST = 16

export class TcpOutput {
  readonly #core: NetCore
  readonly #kernelOffsets: boolean
  #first: TcpFlow | undefined
  #last: TcpFlow | undefined
  /** Whose acknowledgment waits, and perhaps some that have been answered since; how many wait. */
  readonly #later: TcpFlow[] = []
  #owed = 0
  readonly #alarm: NetAlarm
  /** Which remotes answered promptly, by a hash: a new connection to one of them begins with that. */
  readonly #promptRemotes = new Uint8Array(REMEMBERED)
  // The segment that was decided on.
  #flow: TcpFlow | undefined
  #sequence = 0
  #length = 0
  #flags = 0
  #again = false
  readonly #header = new Uint8Array(160)
  readonly #view = new DataView(this.#header.buffer)
  readonly #reader = new PeekReader(1024, MAX_SKIP)
  #payload: IoVector | undefined
  /** What of it is behind all that was taken. */
  #rest: IoVector | undefined
  offloads: GuestOffloads = ALL_OFFLOADS
  /** A host socket turned out to be broken when it was read. */
  onBroken: (flow: TcpFlow) => void = () => {}

  constructor(core: NetCore, kernelOffsets: boolean) {
    this.#core = core
    this.#kernelOffsets = kernelOffsets
    this.#alarm = core.addAlarm(now => this.onTimer(now))
  }

  /** The flow may have something to say. */
  enqueue(flow: TcpFlow): void {
    if (flow.queued || flow.state === CLOSED) return
    flow.queued = true
    flow.nextQueued = undefined
    if (this.#last === undefined) this.#first = flow
    else this.#last.nextQueued = flow
    this.#last = flow
  }

  acknowledge(flow: TcpFlow): void {
    flow.acknowledge = true
    this.enqueue(flow)
  }

  /** As `acknowledge`, unless a segment with data goes before a timer rings. */
  acknowledgeLater(flow: TcpFlow): void {
    this.#core.expect(EAGER_MS)
    if (flow.reportBy === 0) {
      flow.reportBy = flow.lastHeard + PROMPT_MS
      this.#owed++
      this.#alarm.set(flow.reportBy)
    }
    if (flow.acknowledgeLater) return
    flow.acknowledgeLater = true
    this.#later.push(flow)
  }

  /** The guest hears of all that came, or never will. */
  #settled(flow: TcpFlow): void {
    if (flow.reportBy === 0) return
    flow.reportBy = 0
    if (--this.#owed > 0) return
    // Most answers come in time: the alarm would ring for nothing.
    this.#alarm.clear()
    for (const each of this.#later) each.acknowledgeLater = false
    this.#later.length = 0
  }

  /** A timer rang: what has waited long enough waits no longer. */
  onTimer(now: number): void {
    const flows = this.#later
    let kept = 0
    for (const flow of flows) {
      if (now < flow.reportBy && flow.state !== CLOSED) {
        flows[kept++] = flow
        this.#alarm.set(flow.reportBy)
        continue
      }
      flow.acknowledgeLater = false
      if (flow.unreported === 0) continue
      this.#setPrompt(flow, false)
      flow.distrust = DISTRUST
      this.acknowledge(flow)
    }
    flows.length = kept
  }

  #setPrompt(flow: TcpFlow, prompt: boolean): void {
    flow.prompt = prompt
    this.#promptRemotes[remoteHash(flow)] = prompt ? 1 : 0
  }

  wasPrompt(flow: TcpFlow): boolean {
    return this.#promptRemotes[remoteHash(flow)] !== 0
  }

  /** The length of the next frame; 0: nobody has anything to say now. */
  plan(): number {
    while (this.#flow === undefined && this.#first !== undefined) {
      const flow = this.#first
      this.#first = flow.nextQueued
      if (this.#first === undefined) this.#last = undefined
      flow.queued = false
      flow.nextQueued = undefined
      if (flow.state !== CLOSED && this.#decide(flow)) this.#flow = flow
    }
    const flow = this.#flow
    if (flow === undefined) return 0
    return FrameWriter.transportAt(flow.remote) + TCP_HEADER + this.#sackBytes(flow) + this.#length
  }

  /** The planned segment is no more than the end of a connection that the guest has ended on its side. */
  get endsOnly(): boolean {
    return this.#flow?.finReceived === true && this.#length === 0
  }

  /** A flow that has ended says nothing more. */
  forget(flow: TcpFlow): void {
    this.#settled(flow)
    if (this.#flow === flow) this.#flow = undefined
  }

  #decide(flow: TcpFlow): boolean {
    this.#again = false
    this.#flags = ACK
    this.#length = 0
    this.#sequence = flow.next
    const { state } = flow
    // FIN_WAIT_1, CLOSING and LAST_ACK: what is in flight may have to go again.
    const sends =
      state === ESTABLISHED || state === CLOSE_WAIT || state === FIN_WAIT_1 || state === CLOSING || state === LAST_ACK
    if (sends && (this.#decideHole(flow) || this.#decideNew(flow))) return true
    return flow.acknowledge
  }

  /** In recovery: the next hole between what the guest has (RFC 6675, simplified; the first segment without SACK). */
  #decideHole(flow: TcpFlow): boolean {
    if (!flow.recovering) return false
    if (distance(flow.holeNext, flow.unacknowledged) < 0) flow.holeNext = flow.unacknowledged
    const { sacked } = flow
    let from = flow.holeNext
    let end = advance(from, flow.mss)
    if (sacked.count > 0) {
      let i = 0
      while (i < sacked.count && distance(sacked.ends[i]!, from) <= 0) i++
      if (i < sacked.count && distance(sacked.starts[i]!, from) <= 0) from = sacked.ends[i++]!
      // Beyond the last range nothing is known to be lost.
      if (i >= sacked.count) return false
      end = sacked.starts[i]!
    } else if (from !== flow.unacknowledged) return false
    const dataEnd = flow.finSent ? advance(flow.highest, -1) : flow.highest
    const length = Math.min(distance(end, from), distance(dataEnd, from), flow.mss)
    if (length <= 0) return false
    flow.holeNext = advance(from, length)
    this.#sequence = from
    this.#length = length
    this.#again = true
    return true
  }

  #decideNew(flow: TcpFlow): boolean {
    const inFlight = distance(flow.next, flow.unacknowledged)
    const finDone = flow.finSent && flow.next === flow.highest
    if (finDone) return false
    const limit = Math.min(
      flow.window,
      flow.congestion,
      flow.peekOffset === NO_OFFSET ? MAX_SKIP : Number.POSITIVE_INFINITY,
    )
    const waiting = Math.max(0, flow.available - inFlight)
    const room = limit - inFlight
    const gso = isMapped(flow.remote) ? this.offloads.segments4 : this.offloads.segments6
    const most = gso && this.offloads.checksum ? Math.max(flow.mss, MAX_PAYLOAD - (MAX_PAYLOAD % flow.mss)) : flow.mss
    const length = Math.min(waiting, room, most)
    if (length > 0) {
      // No silly windows (RFC 9293, 3.8.6.2.1): a full segment, all there is, or half of the guest's largest window.
      const worth = length >= flow.mss || length === waiting || length >= flow.largestWindow / 2
      if (worth || inFlight === 0) {
        this.#length = length
        if (length === waiting) this.#flags |= PSH
        this.#again = distance(flow.next, flow.highest) < 0
        if (flow.ended && length === waiting && !gsoNeeded(length, flow.mss)) this.#flags |= FIN
        return true
      }
      return this.#persist(flow)
    }
    if (waiting > 0) return this.#persist(flow)
    if (flow.ended) {
      this.#flags |= FIN
      this.#again = flow.finSent
      return true
    }
    return false
  }

  /** Nothing in flight will make the guest speak: the timer has to. */
  #persist(flow: TcpFlow): false {
    if (flow.deadline === 0) {
      flow.deadline = this.#core.clock() + flow.roundTrip.timeout
      this.#core.wakeAt(flow.deadline)
    }
    return false
  }

  #sackBytes(flow: TcpFlow): number {
    const count = flow.sackPermitted ? Math.min(flow.held.ranges.count, MAX_SACK - 1) : 0
    return count === 0 ? 0 : 4 + count * 8
  }

  /** The planned segment is lost: it counts as sent, and the timer sends it again. */
  skip(): void {
    const flow = this.#flow!
    this.#flow = undefined
    this.#sent(flow, this.#length)
    flow.acknowledge = false
    this.enqueue(flow)
  }

  /** Makes the planned segment in `into`, which has the length that `plan` said. */
  fill(into: IoVector, offload: OffloadHeader): void {
    const flow = this.#flow!
    this.#flow = undefined
    const headers = this.headerBytes(flow)
    let length = this.#length
    let broken = false
    if (length > 0) {
      if (this.#payload?.memory !== into.memory) this.#payload = new IoVector(into.memory)
      this.#payload.setToRangeOf(into, headers, length)
      const got = this.#read(flow, this.#payload)
      if (got < length) {
        // The socket had less than it said, for its connection broke: the rest of the frame is padding.
        length = Math.max(got, 0)
        flow.available = distance(this.#sequence, flow.unacknowledged) + length
        broken = got < 0 && got !== -EAGAIN
        this.#flags &= ~(FIN | PSH)
      }
    }
    this.#write(flow, headers, length, into, offload)
    this.#sent(flow, length)
    this.enqueue(flow)
    if (broken) this.onBroken(flow)
  }

  headerBytes(flow: TcpFlow): number {
    return FrameWriter.transportAt(flow.remote) + TCP_HEADER + this.#sackBytes(flow)
  }

  #read(flow: TcpFlow, payload: IoVector): number {
    const offset = distance(this.#sequence, flow.unacknowledged)
    const { taken } = flow
    if (offset >= taken.length) return this.#peek(flow, payload, offset - taken.length)
    const done = taken.copyTo(payload, offset)
    const left = payload.byteLength - done
    if (left === 0) return done
    if (this.#rest?.memory !== payload.memory) this.#rest = new IoVector(payload.memory)
    this.#rest.setToRangeOf(payload, done, left)
    return done + Math.max(this.#peek(flow, this.#rest, 0), 0)
  }

  #peek(flow: TcpFlow, payload: IoVector, offset: number): number {
    if (flow.peekOffset === NOT_ASKED && offset > 0) {
      flow.peekOffset = this.#kernelOffsets && setPeekOffset(flow.fd, offset) ? offset : NO_OFFSET
    }
    if (flow.peekOffset < 0) return this.#reader.peek(flow.fd, payload, offset)
    if (flow.peekOffset !== offset) setPeekOffset(flow.fd, offset)
    const got = this.#reader.peek(flow.fd, payload, 0)
    flow.peekOffset = offset + Math.max(got, 0)
    return got
  }

  #write(flow: TcpFlow, headers: number, length: number, into: IoVector, offload: OffloadHeader): void {
    const bytes = this.#header
    const at = writeHeaders(
      bytes,
      this.#view,
      this.#core.writer.macs,
      flow.remote,
      flow.guest,
      PROTOCOL_TCP,
      headers - FrameWriter.transportAt(flow.remote) + length,
      HOP_LIMIT,
    )
    this.#tcpHeader(flow, bytes, this.#view, at, this.#sequence, this.#flags, headers - at)
    this.#sackOption(flow, at)
    const sum = pseudoSum(flow.remote, flow.guest, PROTOCOL_TCP, headers - at + length)
    const large = gsoNeeded(length, flow.mss)
    if (this.offloads.checksum) {
      offload.flags = NEEDS_CHECKSUM
      offload.checksumStart = at
      offload.checksumOffset = 16
      offload.headerLength = headers
      offload.gsoType = large ? (isMapped(flow.remote) ? GSO_TCPV4 : GSO_TCPV6) : GSO_NONE
      offload.gsoSize = large ? flow.mss : 0
      this.#view.setUint16(at + 16, sum)
      copyInto(into, bytes, headers)
    } else {
      copyInto(into, bytes, headers)
      this.#view.setUint16(at + 16, invert(sumVector(into, at, headers - at + length, sum)))
      copyInto(into, bytes, headers)
    }
  }

  #tcpHeader(
    flow: TcpFlow,
    bytes: Uint8Array,
    view: DataView,
    at: number,
    sequence: number,
    flags: number,
    length: number,
  ) {
    view.setUint16(at, flow.remotePort)
    view.setUint16(at + 2, flow.guestPort)
    view.setUint32(at + 4, sequence)
    view.setUint32(at + 8, (flags & ACK) === 0 ? 0 : flow.expected)
    bytes[at + 12] = (length / 4) << 4
    bytes[at + 13] = flags
    const free = WINDOW - flow.held.length
    if ((flags & SYN) !== 0) view.setUint16(at + 14, Math.min(free, 65_535))
    else {
      const shown = Math.min(flow.scale < 0 ? free : free >> OUR_SCALE, 65_535)
      view.setUint16(at + 14, shown)
      flow.advertised = advance(flow.expected, flow.scale < 0 ? shown : shown << OUR_SCALE)
    }
    view.setUint16(at + 16, 0)
    view.setUint16(at + 18, 0)
    flow.acknowledge = false
    flow.unreported = 0
    this.#settled(flow)
  }

  /** The range that changed last, then the others from the left (RFC 2018, 4). */
  #sackOption(flow: TcpFlow, at: number): void {
    const { ranges } = flow.held
    const size = this.#sackBytes(flow)
    if (size === 0) return
    let option = at + TCP_HEADER
    this.#view.setUint32(option, 0x0101_0500 | (size - 2))
    option += 4
    const end = at + TCP_HEADER + size
    for (let i = -1; i < ranges.count && option < end; i++) {
      if (i === ranges.latest) continue
      const range = i < 0 ? ranges.latest : i
      this.#view.setUint32(option, ranges.starts[range]!)
      this.#view.setUint32(option + 4, ranges.ends[range]!)
      option += 8
    }
  }

  #sent(flow: TcpFlow, length: number): void {
    const now = this.#core.clock()
    const { counters } = this.#core
    flow.packetsToGuest++
    flow.bytesToGuest += length
    const fin = (this.#flags & FIN) !== 0
    if (length === 0 && !fin) return
    if (this.#again) {
      counters.retransmits++
      flow.retransmits++
      // Karn's rule: what went twice tells no time.
      flow.timedAt = 0
    } else {
      if (length > 0 && !flow.prompt && now - flow.lastHeard < PROMPT_MS) {
        if (flow.distrust > 0) flow.distrust--
        else this.#setPrompt(flow, true)
      }
      if (flow.timedAt === 0) {
        flow.timedAt = now
        flow.timedSequence = advance(this.#sequence, length)
      }
    }
    const end = advance(this.#sequence, length + (fin ? 1 : 0))
    if (distance(end, flow.next) > 0) flow.next = end
    if (distance(flow.next, flow.highest) > 0) flow.highest = flow.next
    if (fin && !flow.finSent) {
      flow.finSent = true
      flow.state = flow.state === ESTABLISHED ? FIN_WAIT_1 : flow.state === CLOSE_WAIT ? LAST_ACK : flow.state
    }
    if (flow.deadline === 0 || flow.retries === 0) {
      flow.deadline = now + flow.roundTrip.timeout
      this.#core.wakeAt(flow.deadline)
    }
  }

  /** A segment without data, at once: SYN, SYN-ACK, probes and keep-alives. */
  sendControl(flow: TcpFlow, flags: number, sequence: number): void {
    const { writer } = this.#core
    const syn = (flags & SYN) !== 0
    const options = syn ? this.#synOptions(flow) : 0
    const at = writer.begin(flow.remote, flow.guest, PROTOCOL_TCP, TCP_HEADER + options)
    this.#tcpHeader(flow, writer.bytes, writer.view, at, sequence, flags, TCP_HEADER + options)
    if (syn) writer.bytes.set(this.#header.subarray(0, options), at + TCP_HEADER)
    this.#core.emit(writer.finish(16))
    flow.packetsToGuest++
  }

  #synOptions(flow: TcpFlow): number {
    const ours = this.#core.mtu - (isMapped(flow.remote) ? 40 : 60)
    this.#view.setUint32(0, 0x0204_0000 | ours)
    let length = 4
    if (flow.scale >= 0) {
      this.#view.setUint32(length, 0x0103_0300 | OUR_SCALE)
      length += 4
    }
    if (flow.sackPermitted) {
      this.#view.setUint32(length, 0x0101_0402)
      length += 4
    }
    return length
  }

  /** A reset for a flow that we end. */
  sendReset(flow: TcpFlow): void {
    if (flow.state === SYN_SENT) this.sendControl(flow, RST, flow.initialSend)
    else this.sendControl(flow, RST | ACK, flow.next)
  }
}

const remoteHash = ({ remote, remotePort }: TcpFlow): number =>
  (remote[15]! ^ (remote[14]! << 3) ^ remotePort ^ (remotePort >> 5)) & (REMEMBERED - 1)

const gsoNeeded = (length: number, mss: number): boolean => length > mss

function copyInto(into: IoVector, bytes: Uint8Array, length: number): void {
  if (into.lengths[0]! >= length) {
    const to = into.offsets[0]!
    for (let i = 0; i < length; i++) into.memory[to + i] = bytes[i]!
  } else into.copyFrom(bytes.subarray(0, length))
}
