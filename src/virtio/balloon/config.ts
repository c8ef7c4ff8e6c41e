/** The memory balloon's features and configuration space: VIRTIO 1.2, sections 5.5.3 and 5.5.4. */
export const F_STATS_VQ = 1
export const F_DEFLATE_ON_OOM = 2
/**
 * Free page reporting. PAGE_POISON is not offered on purpose: a driver whose kernel counts on the contents of free pages
 * (init_on_free) then does not report any, and a dropped page of a restored machine may read as the snapshot had it.
 */
export const F_REPORTING = 5

export interface BalloonOptions {
  /** MiB to take from the guest at first. */
  readonly targetMib?: number
  /** Whether the guest gets memory back when it runs out of it. Default: yes. */
  readonly deflateOnOom?: boolean
  /** Whether the guest tells which pages are free, which are then dropped. Default: yes. */
  readonly reporting?: boolean
}

export const BALLOON_QUEUE_SIZE = 128
export const PAGE = 4096
export const PAGES_PER_MIB = 256
/** Offsets in the configuration space. */
export const CONFIG_NUM_PAGES = 0
export const CONFIG_ACTUAL = 4
const CONFIG_SIZE = 16

export function pagesBytes(pages: number): Uint8Array {
  const bytes = new Uint8Array(4)
  new DataView(bytes.buffer).setUint32(0, pages, true)
  return bytes
}

export function balloonConfig(targetMib: number): Uint8Array {
  const config = new Uint8Array(CONFIG_SIZE)
  config.set(pagesBytes(targetMib * PAGES_PER_MIB), CONFIG_NUM_PAGES)
  return config
}
