/**
 * A snapshot's manifest: what it is, what it needs, and which layers hold its memory and its disk. One small file:
 *
 *   0   'VITRSNAP'          24  SHA-256 of bytes 0-23 and the JSON
 *   8   u32 version         56  JSON
 *   12  u32 JSON bytes          state of CPUs and devices, whose SHA-256 is in the JSON
 *   16  u32 state bytes
 */
import { createHash } from 'node:crypto'
import type { CpuNeeds } from './cpu-needs.ts'
import { SnapshotError } from './errors.ts'
import { type CodeRef, LAYER_FILE, type LayerRef } from './layer.ts'

const MAGIC = 'VITRSNAP'
const VERSION = 1
export const FIXED_BYTES = 56
const SUM_AT = 24
const MAX_JSON = 16 << 20
export const MAX_STATE = 256 << 20

export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue | undefined }

export type SnapshotKind = 'snapshot' | 'fork' | 'pause' | 'template'

/** The machine that was running. */
export interface MachineShape {
  readonly accelerator: string
  readonly cpus: number
  readonly memoryMib: number
  /** Which kernel and initramfs it was booted from: text that is equal when they are. */
  readonly kernel: string
  readonly initrd: string
}

/** The image's ext4 file, below all disk layers. */
export interface BaseDisk {
  readonly path: string
  readonly bytes: number
  /** Of its superblock, which holds its UUID: the same image gives the same. */
  readonly sum: string
  readonly image: string
  readonly imageId: string
}

/** What a snapshot is and which files hold it. */
export interface SnapshotManifest {
  readonly id: string
  /** A box's id, `template` or `import`: names are unique within one. */
  readonly owner: string
  /** The box that it was taken of. */
  readonly box: { readonly id: string; readonly name: string }
  /** Null for those that are not for people. */
  readonly name: string | null
  readonly kind: SnapshotKind
  /** What a template is found by. */
  readonly key: string | null
  /** The snapshots before it, nearest first: some of them may have been removed. */
  readonly ancestors: readonly string[]
  readonly created: string
  /** These three are null in a snapshot of the disk only. */
  readonly machine: MachineShape | null
  readonly cpu: CpuNeeds | null
  readonly memory: { readonly bytes: number; readonly layers: readonly LayerRef[] } | null
  /** Absent where there is none, and in what was imported: it is trusted. */
  readonly code?: CodeRef
  /** Without a base the lowest layer holds the image as well. */
  readonly disk: { readonly bytes: number; readonly base: BaseDisk | null; readonly layers: readonly LayerRef[] }
  readonly state: { readonly bytes: number; readonly sha256: string }
  /** What the box is; opaque here. */
  readonly settings: JsonValue
}

export const sha256 = (...parts: readonly Uint8Array[]): string => {
  const hash = createHash('sha256')
  for (const part of parts) hash.update(part)
  return hash.digest('hex')
}

export function encodeManifest(manifest: SnapshotManifest, state: Uint8Array): Uint8Array {
  const json = Buffer.from(JSON.stringify(manifest))
  const head = Buffer.alloc(FIXED_BYTES)
  head.write(MAGIC, 'latin1')
  head.writeUInt32LE(VERSION, 8)
  head.writeUInt32LE(json.length, 12)
  head.writeUInt32LE(state.length, 16)
  head.write(sha256(head.subarray(0, SUM_AT), json), SUM_AT, 'hex')
  return Buffer.concat([head, json, state])
}

const TRY = 'remove it, or import it again'

/** What the fixed part says of the rest: so much is to be read. */
export function decodeFixed(head: Uint8Array, where: string): { jsonBytes: number; stateBytes: number } {
  const bytes = Buffer.from(head.buffer, head.byteOffset, head.length)
  if (bytes.length < MAGIC.length || bytes.toString('latin1', 0, MAGIC.length) !== MAGIC)
    throw new SnapshotError('FOREIGN', `${where} is not a snapshot of Vitrine: ${TRY}`)
  if (bytes.length < FIXED_BYTES) throw new SnapshotError('TRUNCATED', `${where} ends too early: ${TRY}`)
  const version = bytes.readUInt32LE(8)
  if (version !== VERSION) {
    throw new SnapshotError(
      version > VERSION ? 'NEWER_VERSION' : 'FOREIGN',
      `${where} has format version ${version}, and this Vitrine knows ${VERSION}: use the Vitrine that made it`,
    )
  }
  const jsonBytes = bytes.readUInt32LE(12)
  const stateBytes = bytes.readUInt32LE(16)
  if (jsonBytes > MAX_JSON || stateBytes > MAX_STATE || bytes.readUInt32LE(20) !== 0)
    throw new SnapshotError('CORRUPT', `${where} is damaged (its lengths make no sense): ${TRY}`)
  return { jsonBytes, stateBytes }
}

/** `bytes` is the fixed part and the JSON, at least. */
export function decodeManifest(bytes: Uint8Array, where: string): SnapshotManifest {
  const { jsonBytes, stateBytes } = decodeFixed(bytes, where)
  if (bytes.length < FIXED_BYTES + jsonBytes) throw new SnapshotError('TRUNCATED', `${where} ends too early: ${TRY}`)
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
  const json = buffer.subarray(FIXED_BYTES, FIXED_BYTES + jsonBytes)
  if (sha256(buffer.subarray(0, SUM_AT), json) !== buffer.toString('hex', SUM_AT, FIXED_BYTES))
    throw new SnapshotError('CORRUPT', `${where} is damaged (its checksum is wrong): ${TRY}`)
  const manifest = parseManifest(json.toString(), where)
  if (manifest.state.bytes !== stateBytes)
    throw new SnapshotError('CORRUPT', `${where} is damaged (the length of its state): ${TRY}`)
  return manifest
}

/** The state behind the JSON, checked. `bytes` is the whole file. */
export function decodeState(bytes: Uint8Array, manifest: SnapshotManifest, where: string): Uint8Array {
  const { jsonBytes, stateBytes } = decodeFixed(bytes, where)
  const state = bytes.subarray(FIXED_BYTES + jsonBytes)
  if (state.length !== stateBytes) throw new SnapshotError('TRUNCATED', `${where} has not its full length: ${TRY}`)
  if (sha256(state) !== manifest.state.sha256)
    throw new SnapshotError('CORRUPT', `${where} is damaged (the checksum of its state): ${TRY}`)
  return state
}

/** Checks every field: the file may come from anywhere. */
export function parseManifest(json: string, where: string): SnapshotManifest {
  const bad = (what: string): SnapshotError =>
    new SnapshotError('CORRUPT', `${where} is damaged (its ${what} make no sense): ${TRY}`)
  let value: unknown
  try {
    value = JSON.parse(json)
  } catch {
    throw bad('contents')
  }
  if (!isRecord(value)) throw bad('contents')
  const { id, owner, box, name, kind, key, ancestors, created, machine, cpu, memory, disk, state, code } = value
  if (!isId(id) || typeof owner !== 'string' || !OWNER.test(owner)) throw bad('id and owner')
  if (!isRecord(box) || !isText(box.id) || !isText(box.name)) throw bad('box')
  if (!(name === null || (isText(name) && NAME.test(name)))) throw bad('name')
  if (!(typeof kind === 'string' && KINDS.has(kind)) || !(key === null || isText(key))) throw bad('kind and key')
  if (!Array.isArray(ancestors) || ancestors.length > 100_000 || !ancestors.every(isId)) throw bad('ancestors')
  if (!isText(created) || Number.isNaN(Date.parse(created))) throw bad('time')
  if (!isRecord(state) || !isCount(state.bytes) || !isHex(state.sha256, 64)) throw bad('state')
  if (
    !isRecord(disk) ||
    !isCount(disk.bytes) ||
    !(disk.base === null || isBase(disk.base)) ||
    !isLayers(disk.layers, 'qcow2')
  )
    throw bad('disk layers')
  if (disk.layers.length === 0) throw bad('disk layers')
  if (memory !== null) {
    if (!isRecord(memory) || !isCount(memory.bytes) || !isLayers(memory.layers, 'mem')) throw bad('memory layers')
    if (memory.layers.length === 0 || memory.bytes === 0 || memory.bytes > 2 ** 32 || memory.bytes % 4096 !== 0)
      throw bad('memory layers')
    if (!isShape(machine) || machine.memoryMib * 2 ** 20 !== memory.bytes) throw bad('machine')
    if (cpu !== null && !isCpu(cpu)) throw bad('CPU features')
  } else if (machine !== null || cpu !== null) throw bad('machine')
  if (code !== undefined && (memory === null || !isLayers([code], 'code') || !isRecord(code) || !isText(code.build)))
    throw bad('code')
  if (!('settings' in value)) throw bad('settings')
  return value as unknown as SnapshotManifest
}

export const NAME = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$/
const OWNER = /^(?:[0-9a-f]{12}|template|import)$/
const KINDS = new Set(['snapshot', 'fork', 'pause', 'template'])

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value)
const isText = (value: unknown): value is string => typeof value === 'string' && value.length <= 65_536
const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0
const isHex = (value: unknown, digits: number): value is string =>
  typeof value === 'string' && value.length === digits && /^[0-9a-f]*$/.test(value)
export const isId = (value: unknown): value is string => isHex(value, 12)

function isLayers(value: unknown, extension: string): value is readonly LayerRef[] {
  return (
    Array.isArray(value) &&
    value.length <= 1000 &&
    value.every(
      layer =>
        isRecord(layer) &&
        isText(layer.file) &&
        LAYER_FILE.test(layer.file) &&
        layer.file.endsWith(extension) &&
        isCount(layer.bytes) &&
        isHex(layer.sum, 16) &&
        isText(layer.stamp),
    )
  )
}

function isBase(value: unknown): value is BaseDisk {
  return (
    isRecord(value) &&
    isText(value.path) &&
    isCount(value.bytes) &&
    isHex(value.sum, 16) &&
    isText(value.image) &&
    isText(value.imageId)
  )
}

function isShape(value: unknown): value is MachineShape {
  return (
    isRecord(value) &&
    isText(value.accelerator) &&
    isCount(value.cpus) &&
    value.cpus > 0 &&
    isCount(value.memoryMib) &&
    isText(value.kernel) &&
    isText(value.initrd)
  )
}

function isCpu(value: unknown): value is CpuNeeds {
  return (
    isRecord(value) &&
    isText(value.vendor) &&
    isText(value.digest) &&
    Array.isArray(value.features) &&
    value.features.length <= 4096 &&
    value.features.every(isText)
  )
}
