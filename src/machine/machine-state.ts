/** Everything a machine is but its memory, as a structure and as bytes. */
import { MachineError } from './errors.ts'
import type { LegacyState } from './legacy/legacy-devices.ts'

const MAGIC = 'VITRINE-MACHINE'
const VERSION = 1

/** All of a machine but its memory. */
export interface MachineState {
  readonly accelerator: string
  readonly cpus: number
  readonly memorySize: number
  readonly vcpus: readonly Uint8Array[]
  /** Interrupt controllers, timer, clock. */
  readonly vm: Uint8Array
  readonly legacy: LegacyState
  readonly devices: readonly { readonly name: string; readonly state: Uint8Array }[]
}

/** A JSON header that says where each blob is, its length before it, and the blobs. */
export function encodeMachineState(state: MachineState): Uint8Array {
  const blobs = [...state.vcpus, state.vm, ...state.devices.map(device => device.state)]
  const header = Buffer.from(
    JSON.stringify({
      magic: MAGIC,
      version: VERSION,
      accelerator: state.accelerator,
      cpus: state.cpus,
      memorySize: state.memorySize,
      legacy: state.legacy,
      devices: state.devices.map(device => device.name),
      sizes: blobs.map(blob => blob.length),
    }),
  )
  const length = Buffer.alloc(4)
  length.writeUInt32LE(header.length)
  return Buffer.concat([length, header, ...blobs])
}

const bad = (what: string): MachineError => new MachineError('BAD_SAVED_STATE', `the saved machine ${what}`)

/** The state in bytes that `encodeMachineState` made; anything else is refused. */
export function decodeMachineState(bytes: Uint8Array): MachineState {
  const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length)
  if (buffer.length < 4) throw bad('is truncated')
  const headerEnd = 4 + buffer.readUInt32LE(0)
  if (headerEnd > buffer.length) throw bad('is truncated')
  const header = parseHeader(buffer.subarray(4, headerEnd).toString())
  if (header.magic !== MAGIC) throw bad('is not one')
  if (header.version !== VERSION) throw bad(`has version ${String(header.version)}; this is version ${VERSION}`)
  const { accelerator, cpus, memorySize, legacy, devices, sizes } = header
  if (typeof accelerator !== 'string' || !isCount(cpus) || !isCount(memorySize)) throw bad('has a corrupt header')
  if (!Array.isArray(devices) || !devices.every(name => typeof name === 'string')) throw bad('has a corrupt header')
  if (!Array.isArray(sizes) || !sizes.every(isCount) || sizes.length !== cpus + 1 + devices.length) {
    throw bad('has a corrupt header')
  }
  let at = headerEnd
  const blobs = sizes.map(size => {
    if (at + size > bytes.length) throw bad('is truncated')
    at += size
    return bytes.slice(at - size, at)
  })
  if (at !== bytes.length) throw bad('has bytes after its end')
  return {
    accelerator,
    cpus,
    memorySize,
    vcpus: blobs.slice(0, cpus),
    vm: blobs[cpus]!,
    legacy: legacy as LegacyState,
    devices: devices.map((name: string, i) => ({ name, state: blobs[cpus + 1 + i]! })),
  }
}

function parseHeader(text: string): Record<string, unknown> {
  try {
    const header: unknown = JSON.parse(text)
    if (typeof header === 'object' && header !== null) return header as Record<string, unknown>
  } catch {
    // Not JSON: said below.
  }
  throw bad('has a corrupt header')
}

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0
