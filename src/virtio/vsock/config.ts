/** virtio-vsock's configuration space is the guest's CID (VIRTIO 1.2, 5.10.4), and what bounds the device. */
import { VirtioError } from '../errors.ts'

export interface VsockOptions {
  /** The guest's context id: 3 or more. */
  readonly cid: number
  /**
   * The Unix socket for connections into the guest (`CONNECT <port>\n`, answered by `OK <host port>\n`). Connections of
   * the guest to the host's port N go to the socket `<path>_N`, if somebody listens there.
   */
  readonly path: string
  /** Live connections at most; more are refused. */
  readonly maxConnections?: number
  /** How long a connection into the guest may take: to name its port, and then for the guest to answer. */
  readonly connectTimeoutMs?: number
}

export const VSOCK_QUEUE_SIZE = 256
export const RX_QUEUE = 0
export const TX_QUEUE = 1
export const EVENT_QUEUE = 2

/** What a connection may have under way to a host socket that does not read: the credit that the guest is given. */
export const BUFFER_BYTES = 128 * 1024
/** All of that together. Connections that would need more are reset. */
export const MAX_BUFFERED_BYTES = 64 * 1024 * 1024
export const MAX_CONNECTIONS = 1024
export const CONNECT_TIMEOUT_MS = 30_000
/** Answers to packets of no connection that wait for a receive buffer; when full, the guest's packets wait. */
export const MAX_REPLIES = 64
/** Host ports of connections into the guest start here: out of the way of those that people choose. */
export const FIRST_HOST_PORT = 0x4000_0000

const MAX_CID = 0xffff_fffe

export function vsockConfig(cid: number): Uint8Array {
  if (!Number.isInteger(cid) || cid < 3 || cid > MAX_CID) {
    throw new VirtioError(
      'BAD_DESCRIPTION',
      `a guest cannot have the vsock CID ${cid}: choose one from 3 to ${MAX_CID}`,
    )
  }
  const config = new Uint8Array(8)
  new DataView(config.buffer).setUint32(0, cid, true)
  return config
}
