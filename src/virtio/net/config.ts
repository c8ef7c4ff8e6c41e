/** The network card's features and configuration space: VIRTIO 1.2, sections 5.1.3 and 5.1.4. */
import { VirtioError } from '../errors.ts'

export const F_CSUM = 0
export const F_GUEST_CSUM = 1
export const F_MTU = 3
export const F_MAC = 5
export const F_GUEST_TSO4 = 7
export const F_GUEST_TSO6 = 8
export const F_HOST_TSO4 = 11
export const F_HOST_TSO6 = 12
export const F_MRG_RXBUF = 15
export const F_STATUS = 16

export interface NetOptions {
  /** Like 02:00:00:00:00:01. */
  readonly mac: string
  readonly mtu?: number
}

export const NET_QUEUE_SIZE = 256
export const RX_QUEUE = 0
export const TX_QUEUE = 1
/** `struct virtio_net_hdr` of a VERSION_1 device: always with num_buffers. */
export const NET_HEADER = 12
/** An ethernet header (with a tag) and the largest IP packet. */
export const MAX_FRAME = 65_550
export const CONFIG_STATUS = 6
export const STATUS_LINK_UP = 1

export function netFeatures(offloads: boolean): number[] {
  const features = [F_MTU, F_MAC, F_MRG_RXBUF, F_STATUS]
  if (!offloads) return features
  return [...features, F_CSUM, F_GUEST_CSUM, F_GUEST_TSO4, F_GUEST_TSO6, F_HOST_TSO4, F_HOST_TSO6]
}

export function netConfig({ mac, mtu = 1500 }: NetOptions): Uint8Array {
  const bytes = mac.split(':').map(part => (/^[0-9a-fA-F]{2}$/.test(part) ? Number.parseInt(part, 16) : -1))
  if (bytes.length !== 6 || bytes.includes(-1) || (bytes[0]! & 1) !== 0) {
    throw new VirtioError('BAD_DESCRIPTION', `'${mac}' is no MAC address of a card: give one like 02:00:00:00:00:01`)
  }
  if (!Number.isInteger(mtu) || mtu < 68 || mtu > 65_535) {
    throw new VirtioError('BAD_DESCRIPTION', `an MTU of ${mtu} is not possible: give one from 68 to 65535`)
  }
  const config = new Uint8Array(12)
  const view = new DataView(config.buffer)
  config.set(bytes)
  view.setUint16(CONFIG_STATUS, STATUS_LINK_UP, true)
  view.setUint16(8, 1, true)
  view.setUint16(10, mtu, true)
  return config
}
