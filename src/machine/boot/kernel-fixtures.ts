/** Kernels for tests: small ELF files and bzImages, right or wrong in one particular. */
export interface ElfFixture {
  readonly class?: number
  readonly endian?: number
  readonly machine?: number
  readonly type?: number
  readonly entry?: number
  readonly pvhEntry?: number | undefined
  readonly segments?: readonly { address: number; content: Uint8Array; memorySize?: number; offset?: number }[]
}

export function elfFixture(fixture: ElfFixture = {}): Uint8Array {
  const segments = fixture.segments ?? [{ address: 0x10_0000, content: Uint8Array.of(0xf4, 0xeb, 0xfd) }]
  const note = fixture.pvhEntry === undefined ? undefined : pvhNote(fixture.pvhEntry)
  const count = segments.length + (note ? 1 : 0)
  let at = 64 + count * 56
  const place = (content: Uint8Array): number => {
    const offset = at
    at += content.length
    return offset
  }
  const offsets = segments.map(segment => place(segment.content))
  const noteOffset = note ? place(note) : 0
  const file = new Uint8Array(at)
  const view = new DataView(file.buffer)
  file.set([0x7f, 0x45, 0x4c, 0x46, fixture.class ?? 2, fixture.endian ?? 1, 1])
  view.setUint16(16, fixture.type ?? 2, true)
  view.setUint16(18, fixture.machine ?? 62, true)
  view.setBigUint64(24, BigInt(fixture.entry ?? segments[0]!.address), true)
  view.setBigUint64(32, 64n, true)
  view.setUint16(54, 56, true)
  view.setUint16(56, count, true)
  const header = (i: number, type: number, offset: number, address: number, size: number, memorySize: number) => {
    const to = 64 + i * 56
    view.setUint32(to, type, true)
    view.setBigUint64(to + 8, BigInt(offset), true)
    view.setBigUint64(to + 24, BigInt(address), true)
    view.setBigUint64(to + 32, BigInt(size), true)
    view.setBigUint64(to + 40, BigInt(memorySize), true)
  }
  segments.forEach((segment, i) => {
    const { content } = segment
    header(i, 1, segment.offset ?? offsets[i]!, segment.address, content.length, segment.memorySize ?? content.length)
    file.set(content, offsets[i]!)
  })
  if (note) {
    header(segments.length, 4, noteOffset, 0, note.length, note.length)
    file.set(note, noteOffset)
  }
  return file
}

function pvhNote(entry: number): Uint8Array {
  const note = new Uint8Array(20)
  const view = new DataView(note.buffer)
  view.setUint32(0, 4, true)
  view.setUint32(4, 4, true)
  view.setUint32(8, 18, true)
  note.set([0x58, 0x65, 0x6e, 0], 12)
  view.setUint32(16, entry, true)
  return note
}

/** A bzImage around an already compressed payload (with its size appended, where its format wants that). */
export function bzImageFixture(payload: Uint8Array, version = 0x20f, flags = 1): Uint8Array {
  const file = new Uint8Array(5 * 512 + payload.length)
  const view = new DataView(file.buffer)
  file[0x1f1] = 4
  view.setUint16(0x1fe, 0xaa55, true)
  view.setUint32(0x202, 0x5372_6448, true)
  view.setUint16(0x206, version, true)
  view.setUint16(0x236, flags, true)
  view.setUint32(0x248, 0, true)
  view.setUint32(0x24c, payload.length, true)
  view.setUint32(0x260, 64 << 20, true)
  file.set(payload, 5 * 512)
  return file
}
