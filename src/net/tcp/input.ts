/** What comes from the guest: RFC 9293, section 3.10.7, with the checks of RFC 5961 and SACK of RFC 2018. */
import { IoVector } from '../../host/io-vector.ts'
import { discardBytes, finishWriting, noDelay, takeBytes, writeSocket, writeSocketBytes } from '../../host/socket.ts'
import type { NetCore } from '../core.ts'
import type { TcpFlow } from './flow.ts'
import * as state from './flow.ts'
import { WINDOW } from './held-data.ts'
import type { TcpOutput } from './output.ts'
import { ACK, advance, distance, FIN, RST, type Segment, SYN } from './segment.ts'

const EAGAIN = 11
const EINTR = 4
const DUPLICATES = 3
/** What any path takes in one segment. */
const SMALLEST_MSS = 512
const TIME_WAIT_MS = 2000
const CHALLENGES_PER_SECOND = 100
/** What whoever came through an entrance reads first: the guest has taken the connection. */
export const GREETING = Uint8Array.of(0x4b)

/** What a flow's end means for the rest of the stack. */
export interface FlowEnds {
  /** The guest reset it, or it is over: its socket is closed, with a reset when `abort`. */
  end(flow: TcpFlow, abort: boolean): void
  /** The host's side broke: the guest hears a reset. */
  fail(flow: TcpFlow): void
  /** The segment is of some other, older connection: a reset for that one, and this one stays (RFC 9293, 3.5.2). */
  refuse(flow: TcpFlow, segment: Segment): void
}

export class TcpInput {
  readonly #core: NetCore
  readonly #output: TcpOutput
  readonly #ends: FlowEnds
  #payload: IoVector | undefined
  #challenges = 0
  #challengesSince = 0

  constructor(core: NetCore, output: TcpOutput, ends: FlowEnds) {
    this.#core = core
    this.#output = output
    this.#ends = ends
  }

  /** One segment for a flow that exists; its payload starts at `at` of the frame. */
  segment(flow: TcpFlow, segment: Segment, frame: IoVector, at: number): void {
    flow.packetsFromGuest++
    flow.lastHeard = this.#core.clock()
    if (flow.state === state.CONNECTING) {
      if ((segment.flags & RST) !== 0) this.#ends.end(flow, true)
      return
    }
    if (flow.state === state.SYN_SENT) {
      this.#synSent(flow, segment)
      return
    }
    if (!this.#acceptable(flow, segment)) {
      this.#unacceptable(flow, segment)
      return
    }
    if ((segment.flags & RST) !== 0) {
      if (segment.sequence === flow.expected) this.#ends.end(flow, true)
      else this.#challenge(flow)
      return
    }
    if ((segment.flags & SYN) !== 0) {
      // Simultaneous open: the guest's SYN-ACK begins with the SYN that we have seen (3.5, figure 8).
      if (flow.state === state.SYN_RECEIVED && segment.sequence === flow.initialReceive) {
        if ((segment.flags & ACK) !== 0) this.#acknowledgment(flow, segment)
        return
      }
      this.#challenge(flow)
      return
    }
    if ((segment.flags & ACK) === 0 || !this.#acknowledgment(flow, segment)) return
    if (segment.length > 0) this.#data(flow, segment, frame, at)
    if ((segment.flags & FIN) !== 0) flow.finAhead = advance(segment.sequence, segment.length)
    this.#finish(flow)
    this.#output.enqueue(flow)
  }

  /** 3.10.7.3 */
  #synSent(flow: TcpFlow, segment: Segment): void {
    const { flags, acknowledgment } = segment
    const good = (flags & ACK) !== 0 && acknowledgment === advance(flow.initialSend, 1)
    if ((flags & RST) !== 0) {
      if (good) this.#ends.end(flow, true)
      return
    }
    if ((flags & ACK) !== 0 && !good) {
      this.#ends.refuse(flow, segment)
      return
    }
    if ((flags & SYN) === 0) return
    this.takeSyn(flow, segment)
    if (good) {
      flow.unacknowledged = acknowledgment
      flow.window = segment.window
      flow.largestWindow = segment.window
      this.#established(flow)
      this.#output.acknowledge(flow)
    } else {
      flow.state = state.SYN_RECEIVED
      this.#output.sendControl(flow, SYN | ACK, flow.initialSend)
    }
  }

  /** What a SYN says about the connection. */
  takeSyn(flow: TcpFlow, segment: Segment): void {
    flow.initialReceive = segment.sequence
    flow.expected = advance(segment.sequence, 1)
    flow.advertised = advance(flow.expected, 65_535)
    flow.scale = segment.scale
    flow.sackPermitted = segment.sackPermitted
    const limit = this.#core.mtu - (flow.remote[10] === 255 && flow.remote[0] === 0 ? 40 : 60)
    flow.mss = Math.max(64, Math.min(segment.mss === 0 ? 536 : segment.mss, limit))
    flow.window = segment.window
    flow.largestWindow = segment.window
    flow.windowSequence = segment.sequence
    flow.windowAcknowledgment = segment.acknowledgment
  }

  #established(flow: TcpFlow): void {
    flow.state = state.ESTABLISHED
    if (flow.greeting === 'write') {
      flow.greeting = 'none'
      writeSocketBytes(flow.fd, GREETING)
    }
    flow.deadline = 0
    flow.retries = 0
    flow.timedAt = 0
    this.#output.enqueue(flow)
  }

  /** The four cases of 3.10.7.4, first step. */
  #acceptable(flow: TcpFlow, segment: Segment): boolean {
    const size = segment.length + ((segment.flags & SYN) !== 0 ? 1 : 0) + ((segment.flags & FIN) !== 0 ? 1 : 0)
    const window = Math.max(distance(flow.advertised, flow.expected), 0)
    const begin = distance(segment.sequence, flow.expected)
    if (flow.state === state.SYN_RECEIVED && segment.sequence === flow.initialReceive)
      return (segment.flags & ACK) !== 0
    if (size === 0) return begin === 0 || (begin > 0 && begin < window)
    if (window === 0) return false
    const end = begin + size - 1
    return (begin >= 0 && begin < window) || (end >= 0 && end < window) || (begin < 0 && end >= 0)
  }

  #unacceptable(flow: TcpFlow, segment: Segment): void {
    if ((segment.flags & RST) !== 0) return
    if (flow.state === state.SYN_RECEIVED && (segment.flags & SYN) !== 0) {
      this.#output.sendControl(flow, SYN | ACK, flow.initialSend)
      return
    }
    if (segment.length > 0) this.#core.counters.duplicates++
    // A window probe's acknowledgment counts all the same.
    if ((segment.flags & (ACK | SYN)) === ACK && segment.length > 0) this.#acknowledgment(flow, segment)
    if (flow.state === state.TIME_WAIT) flow.deadline = this.#core.clock() + TIME_WAIT_MS
    this.#output.acknowledge(flow)
  }

  /** RFC 5961: at most a hundred a second. */
  #challenge(flow: TcpFlow): void {
    const now = this.#core.clock()
    if (now - this.#challengesSince > 1000) {
      this.#challengesSince = now
      this.#challenges = 0
    }
    if (this.#challenges++ >= CHALLENGES_PER_SECOND) return
    this.#core.counters.challengeAcks++
    this.#output.acknowledge(flow)
  }

  /** False: the segment is not to be looked at further. */
  #acknowledgment(flow: TcpFlow, segment: Segment): boolean {
    const { acknowledgment } = segment
    const acked = distance(acknowledgment, flow.unacknowledged)
    const ahead = distance(acknowledgment, flow.highest)
    if (flow.state === state.SYN_RECEIVED) {
      if (acked <= 0 || ahead > 0) {
        this.#ends.refuse(flow, segment)
        return false
      }
      flow.unacknowledged = acknowledgment
      this.#established(flow)
      this.#takeWindow(flow, segment)
      return true
    }
    if (ahead > 0 || acked < -Math.max(flow.largestWindow, 65_535)) {
      this.#challenge(flow)
      return false
    }
    if (flow.sackPermitted) this.#takeSack(flow, segment)
    const windowBefore = flow.window
    this.#takeWindow(flow, segment)
    if (acked > 0) return this.#advanced(flow, acknowledgment, acked)
    if (acked === 0 && segment.length === 0 && flow.highest !== flow.unacknowledged && (segment.flags & FIN) === 0) {
      if (windowBefore === flow.window || segment.sackCount > 0) this.#duplicate(flow)
    }
    return true
  }

  #takeWindow(flow: TcpFlow, segment: Segment): void {
    const newer = distance(segment.sequence, flow.windowSequence)
    if (newer < 0 || (newer === 0 && distance(segment.acknowledgment, flow.windowAcknowledgment) < 0)) return
    const opened = flow.window === 0
    // At most 14 (RFC 7323, 2.3): it fits.
    flow.window = segment.window << Math.max(flow.scale, 0)
    if (flow.window > flow.largestWindow) flow.largestWindow = flow.window
    flow.windowSequence = segment.sequence
    flow.windowAcknowledgment = segment.acknowledgment
    if (opened && flow.window > 0) flow.retries = 0
  }

  #takeSack(flow: TcpFlow, segment: Segment): void {
    for (let i = 0; i < segment.sackCount; i++) {
      const start = segment.sack[i * 2]!
      const end = segment.sack[i * 2 + 1]!
      // Only what is in flight: anything else is a duplicate's report (RFC 2883) or a lie.
      if (distance(start, segment.acknowledgment) < 0 || distance(end, flow.highest) > 0) continue
      if (distance(end, start) > 0 && distance(start, flow.unacknowledged) >= 0) flow.sacked.add(start, end)
    }
  }

  /** Something new is acknowledged: it leaves the host socket. */
  #advanced(flow: TcpFlow, acknowledgment: number, acked: number): boolean {
    const now = this.#core.clock()
    const finAcked = flow.finSent && acknowledgment === flow.highest
    const bytes = acked - (finAcked ? 1 : 0)
    if (bytes > 0) {
      if (!this.#discard(flow, bytes)) {
        this.#ends.fail(flow)
        return false
      }
      flow.available -= bytes
    }
    flow.unacknowledged = acknowledgment
    if (distance(flow.next, acknowledgment) < 0) flow.next = acknowledgment
    flow.sacked.trim(acknowledgment)
    flow.duplicates = 0
    flow.retries = 0
    if (flow.congestion < WINDOW) flow.congestion += Math.min(bytes, 2 * flow.mss)
    else flow.congestion = Number.POSITIVE_INFINITY
    if (flow.recovering && distance(acknowledgment, flow.recoverTo) >= 0) {
      flow.recovering = false
    } else if (flow.recovering && flow.sacked.count === 0) flow.holeNext = acknowledgment
    if (flow.timedAt !== 0 && distance(acknowledgment, flow.timedSequence) >= 0) {
      flow.roundTrip.sample(now - flow.timedAt)
      flow.timedAt = 0
    }
    flow.deadline = flow.highest === acknowledgment ? 0 : now + flow.roundTrip.timeout
    if (flow.deadline !== 0) this.#core.wakeAt(flow.deadline)
    if (finAcked) this.#finAcknowledged(flow)
    return flow.state !== state.CLOSED
  }

  /** False: the socket does not have them any more. */
  #discard(flow: TcpFlow, bytes: number): boolean {
    const taken = Math.min(bytes, flow.taken.length)
    if (taken > 0) flow.taken.drop(taken)
    const queued = bytes - taken
    if (queued === 0) return true
    if (flow.peekOffset >= 0) flow.peekOffset = Math.max(0, flow.peekOffset - queued)
    return (flow.unix ? takeBytes(flow.fd, queued) : discardBytes(flow.fd, queued)) === queued
  }

  #finAcknowledged(flow: TcpFlow): void {
    if (flow.state === state.FIN_WAIT_1) flow.state = state.FIN_WAIT_2
    else if (flow.state === state.CLOSING) this.#timeWait(flow)
    else if (flow.state === state.LAST_ACK) this.#ends.end(flow, false)
  }

  /** Three duplicates, or more than that much selectively acknowledged: the first hole is lost (RFC 5681, 6675). */
  #duplicate(flow: TcpFlow): void {
    flow.duplicates++
    if (flow.recovering) {
      this.#output.enqueue(flow)
      return
    }
    if (flow.duplicates < DUPLICATES) return
    flow.recovering = true
    flow.recoverTo = flow.highest
    flow.holeNext = flow.unacknowledged
    this.#output.enqueue(flow)
  }

  #data(flow: TcpFlow, segment: Segment, frame: IoVector, at: number): void {
    const skip = Math.max(0, distance(flow.expected, segment.sequence))
    const sequence = advance(segment.sequence, skip)
    const ahead = distance(sequence, flow.expected)
    const room = WINDOW - flow.held.length - ahead
    const length = Math.min(segment.length - skip, room)
    if (!this.#mayReceive(flow)) return
    flow.unreported += segment.length
    // Little, in order, and likely to be answered soon: the answer can say it. All else is acknowledged at once (RFC 5681, 4.2).
    const little = flow.unreported < flow.mss && skip === 0 && ahead === 0 && flow.held.isEmpty
    if (this.#answerable(flow) && little && length === segment.length) this.#output.acknowledgeLater(flow)
    else flow.acknowledge = true
    if (length <= 0) return
    const from = at + skip
    if (ahead > 0) {
      this.#core.counters.outOfOrder++
      if (!flow.held.keepAhead(frame, from, length, sequence, flow.expected)) this.#core.counters.memoryDrops++
      return
    }
    this.#inOrder(flow, frame, from, length)
  }

  /** The host is likely to say something soon that an acknowledgment can ride on. */
  #answerable(flow: TcpFlow): boolean {
    return flow.prompt && !flow.finSent
  }

  #mayReceive(flow: TcpFlow): boolean {
    const s = flow.state
    return !flow.finReceived && (s === state.ESTABLISHED || s === state.FIN_WAIT_1 || s === state.FIN_WAIT_2)
  }

  /** Straight from guest memory into the host socket if nothing waits before it; what that does not take is held. */
  #inOrder(flow: TcpFlow, frame: IoVector, from: number, length: number): void {
    let done = 0
    if (flow.held.isEmpty && !flow.blocked) {
      if (this.#payload?.memory !== frame.memory) this.#payload = new IoVector(frame.memory)
      this.#payload.setToRangeOf(frame, from, length)
      // The first little can wait for nothing that would be in flight before it (RFC 9293, 3.7.4).
      if (!flow.hurries && (flow.bytesFromGuest > 0 || length > SMALLEST_MSS)) this.#hurry(flow)
      const written = writeSocket(flow.fd, this.#payload)
      if (written < 0 && written !== -EAGAIN && written !== -EINTR) {
        this.#ends.fail(flow)
        return
      }
      done = Math.max(written, 0)
      if (done < length) flow.blocked = true
    }
    if (done < length) {
      if (flow.held.append(frame, from + done, length - done)) done = length
      else this.#core.counters.memoryDrops++
    }
    flow.bytesFromGuest += done
    flow.expected = advance(flow.expected, done)
    const joined = flow.held.joinAhead(flow.expected)
    flow.bytesFromGuest += joined
    flow.expected = advance(flow.expected, joined)
    if (!flow.blocked) this.drain(flow)
  }

  #hurry(flow: TcpFlow): void {
    flow.hurries = true
    noDelay(flow.fd)
  }

  /** Gives held data to the host socket, until it takes no more. */
  drain(flow: TcpFlow): void {
    if (flow.held.length > 0 && !flow.hurries) this.#hurry(flow)
    while (flow.held.length > 0) {
      const piece = flow.held.first
      const written = writeSocketBytes(flow.fd, piece)
      if (written === -EAGAIN || written === -EINTR) {
        flow.blocked = true
        break
      }
      if (written < 0) {
        this.#ends.fail(flow)
        return
      }
      flow.held.take(written)
    }
    // The window has opened by a good part: the guest should know (RFC 9293, 3.8.6.2.2), if it will not hear of it anyway.
    const edge = advance(flow.expected, WINDOW - flow.held.length)
    if (flow.reportBy === 0 && distance(edge, flow.advertised) >= WINDOW / 4) this.#output.acknowledge(flow)
    this.#endWriting(flow)
  }

  /** The guest's FIN, when all before it has come. */
  #finish(flow: TcpFlow): void {
    if (flow.state === state.CLOSED || flow.finAhead < 0 || flow.finReceived || flow.finAhead !== flow.expected) return
    flow.finReceived = true
    flow.expected = advance(flow.expected, 1)
    flow.unreported++
    // A host that answers promptly ends promptly, too: its FIN can say it.
    if (this.#answerable(flow)) this.#output.acknowledgeLater(flow)
    else flow.acknowledge = true
    if (flow.state === state.ESTABLISHED) flow.state = state.CLOSE_WAIT
    else if (flow.state === state.FIN_WAIT_1) flow.state = state.CLOSING
    else if (flow.state === state.FIN_WAIT_2) this.#timeWait(flow)
    this.#endWriting(flow)
  }

  #endWriting(flow: TcpFlow): void {
    if (!flow.finReceived || flow.writeEnded || flow.held.length > 0) return
    flow.writeEnded = true
    finishWriting(flow.fd)
  }

  #timeWait(flow: TcpFlow): void {
    flow.state = state.TIME_WAIT
    flow.deadline = this.#core.clock() + TIME_WAIT_MS
    this.#core.wakeAt(flow.deadline)
  }
}
