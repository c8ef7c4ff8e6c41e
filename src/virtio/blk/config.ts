/** The block device's features and configuration space: VIRTIO 1.2, sections 5.2.3 and 5.2.4. */
import type { BlockBackend } from './backend.ts'

export const SECTOR = 512
/** Room for a request of 1 MiB in pages that lie apart: Linux sends what does not fit as two. */
export const BLK_QUEUE_SIZE = 512

export const F_SEG_MAX = 2
export const F_RO = 5
export const F_BLK_SIZE = 6
export const F_FLUSH = 9
export const F_TOPOLOGY = 10
export const F_CONFIG_WCE = 11
export const F_MQ = 12
export const F_DISCARD = 13
export const F_WRITE_ZEROES = 14

export interface BlkOptions {
  /** What the guest sees in /dev/disk/by-id: up to 20 bytes. */
  readonly serial?: string
  /** How many queues: usually one for each vCPU. */
  readonly queues?: number
}

/** Offsets of the fields that are used after the start. */
export const CONFIG_CAPACITY = 0
export const CONFIG_WRITEBACK = 32
const CONFIG_SIZE = 60

/** Header, data, status: the first and the last segment are not data. */
const SEG_MAX = BLK_QUEUE_SIZE - 2
/** What one discard or write-zeroes request may ask for, 512 MiB in all: a million entries of the smallest clusters. */
export const MAX_RANGES = 4
export const MAX_RANGE_SECTORS = 0x4_0000

export function blkFeatures(backend: BlockBackend): number[] {
  const features = [F_SEG_MAX, F_BLK_SIZE, F_FLUSH, F_TOPOLOGY, F_CONFIG_WCE, F_MQ]
  return backend.readOnly ? [...features, F_RO] : [...features, F_DISCARD, F_WRITE_ZEROES]
}

export const capacitySectors = (backend: BlockBackend): number => Math.floor(backend.sizeBytes / SECTOR)

export function blkConfig(backend: BlockBackend, queues: number): Uint8Array {
  const config = new Uint8Array(CONFIG_SIZE)
  const view = new DataView(config.buffer)
  view.setBigUint64(CONFIG_CAPACITY, BigInt(capacitySectors(backend)), true)
  view.setUint32(12, SEG_MAX, true)
  view.setUint32(20, SECTOR, true)
  // Topology: physical blocks of 4 KiB (2^3 sectors), aligned, and no more advice than that.
  view.setUint8(24, 3)
  view.setUint16(26, 1, true)
  view.setUint8(CONFIG_WRITEBACK, 1)
  view.setUint16(34, queues, true)
  if (!backend.readOnly) {
    view.setUint32(36, MAX_RANGE_SECTORS, true)
    view.setUint32(40, MAX_RANGES, true)
    view.setUint32(44, 8, true)
    view.setUint32(48, MAX_RANGE_SECTORS, true)
    view.setUint32(52, MAX_RANGES, true)
    view.setUint8(56, 1)
  }
  return config
}
