/**
 * What a network card is plugged into. A link takes and gives whole ethernet frames in guest memory, without a copy of
 * its own if it can help it. It lives in the device's worker; everything is synchronous.
 *
 * With offloads (VIRTIO 1.2, 5.1.6), frames may be up to 64 KiB long and carry what is left to do in a `FrameHeader`:
 * a checksum to fill in, a TCP segment to be cut up.
 */
import type { IoVector } from '../../host/io-vector.ts'
import type { PollSet } from '../../host/poll.ts'
import type { SavedValue } from '../device.ts'

export const FLAG_NEEDS_CSUM = 1
export const FLAG_DATA_VALID = 2
export const GSO_NONE = 0
export const GSO_TCPV4 = 1
export const GSO_TCPV6 = 4
export const GSO_ECN = 0x80

/** `struct virtio_net_hdr` without its last field. Made once and filled for each frame. */
export interface FrameHeader {
  flags: number
  gsoType: number
  headerLength: number
  gsoSize: number
  checksumStart: number
  checksumOffset: number
}

/** What the guest's driver takes: unfinished checksums, segments larger than the MTU. */
export interface GuestOffloads {
  readonly checksum: boolean
  readonly segments4: boolean
  readonly segments6: boolean
}

export interface FrameLink {
  /** Takes frames with unfinished checksums and of more than one segment, and may give such. */
  readonly offloads: boolean
  /** The guest has a driver: from now on `onReady` is called when there is a frame, or room again after a refused `send`. */
  start(poll: PollSet, onReady: () => void, guest: GuestOffloads): void
  stop(): void
  /** One frame from the guest, valid during the call. False: no room, keep it and offer it again after `onReady`. */
  send(frame: IoVector, header: FrameHeader): boolean
  /** The length of the next frame for the guest; 0 when there is none. */
  readonly nextLength: number
  /** Puts the next frame into `into`, which has exactly its length, and takes it off. */
  receive(into: IoVector, header: FrameHeader): void
  /** That nobody in the guest is likely to wait for what was received last: it may be told later. */
  readonly isIdle?: boolean
  /** Takes the next frame off: the guest has no buffers that it would ever fit. */
  skip(): void
  /** What a link of a restored guest has to know; `restore` comes before `start`. */
  save?(): SavedValue
  restore?(state: SavedValue): void
  /** Requests that are the link's own affair. */
  control?(request: SavedValue): SavedValue
  close(): void
}
