/** Internal snapshots, listed. "Snapshots" in qcow2.txt. They are never changed here: copy-on-write keeps them whole. */
import { getU64, viewOver } from './bytes.ts'
import { DiskError } from './errors.ts'
import type { Header } from './header.ts'
import { MAX_L1_BYTES, MAX_OFFSET, MAX_SNAPSHOT_TABLE_BYTES } from './layout.ts'
import type { Storage } from './storage.ts'

/** A snapshot inside of a QCOW2 file. */
export interface Snapshot {
  readonly id: string
  readonly name: string
  readonly l1TableOffset: number
  readonly l1Size: number
  /** Seconds since 1970, with the nanoseconds as a fraction. */
  readonly date: number
  /** The guest's clock, in nanoseconds. */
  readonly vmClockNs: number
  /** Bytes of saved machine state; 0 for a snapshot of the disk alone. */
  readonly vmStateSize: number
  /** The size of the disk then, in bytes. */
  readonly diskSize: number
  /** Where this entry is in the file, and its length. */
  readonly entryOffset: number
  readonly entryBytes: number
}

const FIXED_BYTES = 40

export function readSnapshots(storage: Storage, header: Header, path: string): Snapshot[] {
  const snapshots: Snapshot[] = []
  const decoder = new TextDecoder()
  const fixed = new Uint8Array(FIXED_BYTES)
  const view = viewOver(fixed)
  let at = header.snapshotsOffset
  const fileSize = storage.size()
  for (let i = 0; i < header.nbSnapshots; i++) {
    if (at + FIXED_BYTES > fileSize) throw damaged(path, `snapshot ${i} is past the end of the file`)
    storage.read(fixed, at)
    const idBytes = view.getUint16(12)
    const nameBytes = view.getUint16(14)
    const extraBytes = view.getUint32(36)
    const bytes = FIXED_BYTES + extraBytes + idBytes + nameBytes
    if (extraBytes > 1024 || at + bytes - header.snapshotsOffset > MAX_SNAPSHOT_TABLE_BYTES) {
      throw damaged(path, `snapshot ${i} has an entry of ${bytes} bytes`)
    }
    const rest = new Uint8Array(extraBytes + idBytes + nameBytes)
    storage.read(rest, at + FIXED_BYTES)
    const l1TableOffset = getU64(view, 0)
    const l1Size = view.getUint32(8)
    if (l1Size * 8 > MAX_L1_BYTES || l1TableOffset % 2 ** header.clusterBits !== 0 || l1TableOffset > MAX_OFFSET) {
      throw damaged(path, `snapshot ${i} has an impossible L1 table (${l1Size} entries at ${l1TableOffset})`)
    }
    const extra = viewOver(rest)
    snapshots.push({
      l1TableOffset,
      l1Size,
      date: view.getUint32(16) + view.getUint32(20) / 1e9,
      vmClockNs: getU64(view, 24),
      vmStateSize: extraBytes >= 8 ? getU64(extra, 0) : view.getUint32(32),
      diskSize: extraBytes >= 16 ? getU64(extra, 8) : header.size,
      id: decoder.decode(rest.subarray(extraBytes, extraBytes + idBytes)),
      name: decoder.decode(rest.subarray(extraBytes + idBytes)),
      entryOffset: at,
      entryBytes: bytes,
    })
    at += Math.ceil(bytes / 8) * 8
  }
  return snapshots
}

const damaged = (path: string, what: string): DiskError => new DiskError('CORRUPT', path, `is damaged: ${what}`)
