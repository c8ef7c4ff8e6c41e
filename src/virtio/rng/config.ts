/** virtio-entropy has no configuration space and no feature bits of its own (VIRTIO 1.2, 5.4.3 and 5.4.4). */
export interface RngOptions {
  /** The most that one request gets. */
  readonly maxBytes?: number
}

export const RNG_CONFIG = new Uint8Array(0)
export const RNG_QUEUE_SIZE = 64
export const RNG_MAX_BYTES = 65536
