/**
 * The wire between a network card and the stack, in the stack's own words: whole ethernet frames in the card's memory,
 * with what the card's driver left undone in an `OffloadHeader` (`struct virtio_net_hdr`, as a tap device has it too).
 */
export const NEEDS_CHECKSUM = 1
export const CHECKSUM_VALID = 2
export const GSO_NONE = 0
export const GSO_TCPV4 = 1
export const GSO_TCPV6 = 4

export interface OffloadHeader {
  flags: number
  gsoType: number
  headerLength: number
  gsoSize: number
  checksumStart: number
  checksumOffset: number
}

/** What the guest's driver takes: checksums left to it, TCP segments larger than the MTU. */
export interface GuestOffloads {
  readonly checksum: boolean
  readonly segments4: boolean
  readonly segments6: boolean
}

export const ALL_OFFLOADS: GuestOffloads = { checksum: true, segments4: true, segments6: true }

/** Ethernet and the largest IP packet. */
export const MAX_FRAME = 65_550
export const ETHERNET = 14
