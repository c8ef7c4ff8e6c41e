/** One TCP connection between the guest and a host socket: its state, nothing more. RFC 9293, 3.3. */
import type { EdgeSource } from '../core.ts'
import type { ChainedFlow } from '../flow-table.ts'
import { HeldData, type MemoryPool } from './held-data.ts'
import { Ranges } from './ranges.ts'
import { RoundTrip } from './rtt.ts'
import { TakenData } from './taken-data.ts'

/** The host socket is not connected yet; the guest's SYN waits for its answer. */
export const CONNECTING = 0
export const SYN_SENT = 1
export const SYN_RECEIVED = 2
export const ESTABLISHED = 3
export const FIN_WAIT_1 = 4
export const FIN_WAIT_2 = 5
export const CLOSE_WAIT = 6
export const CLOSING = 7
export const LAST_ACK = 8
export const TIME_WAIT = 9
export const CLOSED = 10
export const STATE_NAMES = [
  'connecting',
  'syn-sent',
  'syn-received',
  'established',
  'fin-wait-1',
  'fin-wait-2',
  'close-wait',
  'closing',
  'last-ack',
  'time-wait',
  'closed',
] as const

/** Whether the kernel keeps an offset for peeks was not asked yet, or it keeps none. */
export const NOT_ASKED = -2
export const NO_OFFSET = -1

/** Ranges that the guest can say it has. */
const MAX_SACKED = 16

export class TcpFlow implements ChainedFlow, EdgeSource {
  readonly protocol = 'tcp'
  readonly guest: Uint8Array
  readonly guestPort: number
  readonly remote: Uint8Array
  readonly remotePort: number
  nextInBucket: ChainedFlow | undefined
  nextQueued: TcpFlow | undefined
  queued = false
  state = CONNECTING
  fd = -1
  readonly #onEdge: (flow: TcpFlow, events: number) => void

  // Towards the guest (3.3.1: SND).
  initialSend = 0
  unacknowledged = 0
  next = 0
  /** The highest `next` there was: what may be acknowledged. */
  highest = 0
  window = 0
  largestWindow = 0
  scale = 0
  /** The segment that the window was last taken from. */
  windowSequence = 0
  windowAcknowledgment = 0
  mss = 536
  sackPermitted = false
  readonly sacked = new Ranges(MAX_SACKED)
  duplicates = 0
  /** Holes below this are sent again. */
  recovering = false
  recoverTo = 0
  holeNext = 0
  /** After a time-out: how much may be in flight; unlimited otherwise, for the link is memory and loses nothing. */
  congestion = Number.POSITIVE_INFINITY
  finSent = false

  // From the guest (RCV).
  initialReceive = 0
  expected = 0
  /** The right edge of the window that the guest was told. */
  advertised = 0
  readonly held: HeldData
  /** The guest's FIN came before all of its data. */
  finAhead = -1
  finReceived = false
  acknowledge = false
  /** Data that came since the last acknowledgment, and whether that may wait for an answer to ride on. */
  unreported = 0
  /** When those that may wait are acknowledged at the latest; 0: there are none. */
  reportBy = 0
  acknowledgeLater = false
  /** The host answered soon after the guest had said something: it may do so again. */
  prompt = false
  /** How many prompt answers it takes to be believed, after it was believed in vain. */
  distrust = 0

  // The host socket.
  /** A Unix socket, not a TCP one. */
  unix = false
  /** The byte that says that the other end's guest has taken the connection is still to be read, or written. */
  greeting: 'none' | 'read' | 'write' = 'none'
  /** It took less than it was given; an edge tells when it takes more. */
  blocked = false
  /** What was taken from it already. */
  readonly taken = new TakenData()
  /** Bytes taken and in its receive queue, those in flight to the guest included. */
  available = 0
  ended = false
  writeEnded = false
  /** Where the kernel peeks next in its receive queue, or one of the two above. */
  peekOffset = NOT_ASKED
  /** The kernel was told to send little at once, and to ask a silent peer whether it is still there. */
  hurries = false
  asksPeer = false

  // Timers.
  readonly roundTrip = new RoundTrip()
  /** When one of them has something to do; 0: never. */
  deadline = 0
  timedSequence = 0
  timedAt = 0
  retries = 0
  lastHeard = 0
  openedAt = 0

  // Seen from outside.
  bytesFromGuest = 0
  bytesToGuest = 0
  packetsFromGuest = 0
  packetsToGuest = 0
  retransmits = 0

  constructor(
    guest: Uint8Array,
    guestPort: number,
    remote: Uint8Array,
    remotePort: number,
    pool: MemoryPool,
    onEdge: (flow: TcpFlow, events: number) => void,
  ) {
    this.guest = guest
    this.guestPort = guestPort
    this.remote = remote
    this.remotePort = remotePort
    this.held = new HeldData(pool)
    this.#onEdge = onEdge
  }

  onEdge(events: number): void {
    this.#onEdge(this, events)
  }
}
