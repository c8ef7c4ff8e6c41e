/**
 * One stream between a port of the guest and a Unix socket of the host.
 *
 *   REQUEST sent or received -> open -> (each side may end its sending: half-closed) -> both ended -> gone
 *
 * Credit (VIRTIO 1.2, 5.10.6.3): each side says how much it can buffer (buf_alloc) and how much it has passed on
 * (fwd_cnt); the other never has more than that under way. Counters are free-running 32-bit numbers.
 */
import { BUFFER_BYTES } from './config.ts'

/** 'asked': we sent REQUEST and wait. 'ended': both directions are over, the guest's RST is all that is missing. */
export type ConnectionState = 'asked' | 'open' | 'ended'

export class Connection {
  readonly hostPort: number
  readonly guestPort: number
  fd: number
  state: ConnectionState
  /** Control packets that the guest is owed, sent as receive buffers come. */
  owesRequest = false
  owesResponse = false
  owesReset = false
  owesCredit = false
  /** SHUTDOWN flags to send, and those that were sent. */
  owesShutdown = 0
  saidShutdown = 0
  /** The guest's SHUTDOWN flags. */
  guestShutdown = 0
  /** In the device's list of connections that have something for the guest. */
  queued = false
  /** The socket may have something to read. */
  readable = false
  /** The guest knows nothing of it any more. */
  gone = false
  /** The socket's other end is closed altogether. */
  hungUp = false
  /** What the poll set is asked for; -1 when it is not asked at all. */
  events = -1
  /** Bytes from the guest that its socket had no room for: a ring, made when first needed. */
  backlog: Uint8Array | undefined
  backlogStart = 0
  backlogLength = 0
  #guestBufAlloc = 0
  #guestFwdCnt = 0
  #sent = 0
  #received = 0
  #forwarded = 0
  #advertised = 0

  constructor(fd: number, hostPort: number, guestPort: number, state: ConnectionState) {
    this.fd = fd
    this.hostPort = hostPort
    this.guestPort = guestPort
    this.state = state
  }

  /** Every packet of the guest carries its credit. */
  noteGuestCredit(bufAlloc: number, fwdCnt: number): void {
    this.#guestBufAlloc = bufAlloc
    this.#guestFwdCnt = fwdCnt
  }

  /** How many bytes the guest has room for. A guest that claims nonsense gets nothing. */
  get sendCredit(): number {
    const underWay = (this.#sent - this.#guestFwdCnt) >>> 0
    return underWay <= this.#guestBufAlloc ? this.#guestBufAlloc - underWay : 0
  }

  noteSent(bytes: number): void {
    this.#sent = (this.#sent + bytes) >>> 0
  }

  /** False when the guest sent more than it had credit for. */
  noteReceived(bytes: number): boolean {
    // Before the sum is taken: it wraps, and a packet of almost 4 GiB would count as none.
    if (bytes > BUFFER_BYTES - ((this.#received - this.#forwarded) >>> 0)) return false
    this.#received = (this.#received + bytes) >>> 0
    return true
  }

  noteForwarded(bytes: number): void {
    this.#forwarded = (this.#forwarded + bytes) >>> 0
    // Tell the guest before it has used up what it knows of.
    const knownRoom = BUFFER_BYTES - ((this.#received - this.#advertised) >>> 0)
    if (knownRoom < BUFFER_BYTES / 2 && this.#forwarded !== this.#advertised) this.owesCredit = true
  }

  /** The fwd_cnt for a packet that is about to be sent, which tells the guest as well as CREDIT_UPDATE does. */
  advertise(): number {
    this.#advertised = this.#forwarded
    this.owesCredit = false
    return this.#forwarded
  }

  get owesControl(): boolean {
    return this.owesReset || this.owesRequest || this.owesResponse || this.owesCredit || this.owesShutdown !== 0
  }

  /** Keeps `bytes` for when the socket has room. Credit makes sure that they fit. */
  pushBacklog(bytes: Uint8Array): void {
    this.backlog ??= new Uint8Array(BUFFER_BYTES)
    const at = (this.backlogStart + this.backlogLength) % BUFFER_BYTES
    const first = Math.min(bytes.length, BUFFER_BYTES - at)
    this.backlog.set(bytes.subarray(0, first), at)
    this.backlog.set(bytes.subarray(first), 0)
    this.backlogLength += bytes.length
  }

  /** The longest contiguous run at the start of the backlog. */
  backlogRun(): Uint8Array {
    const end = Math.min(this.backlogStart + this.backlogLength, BUFFER_BYTES)
    return this.backlog!.subarray(this.backlogStart, end)
  }

  popBacklog(bytes: number): void {
    this.backlogStart = (this.backlogStart + bytes) % BUFFER_BYTES
    this.backlogLength -= bytes
    if (this.backlogLength === 0) {
      this.backlog = undefined
      this.backlogStart = 0
    }
  }
}
