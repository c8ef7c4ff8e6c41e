/** Makes tar archives entry by entry, good and bad ones: what `tar` would never write has to come from somewhere. */
export interface TarSpec {
  readonly path: string
  /** A tar type flag; a regular file if absent. */
  readonly type?: string
  readonly data?: Uint8Array
  readonly linkPath?: string
  readonly mode?: number
  readonly uid?: number
  readonly gid?: number
  readonly mtime?: number
  readonly pax?: Readonly<Record<string, string | Uint8Array>>
}

export function tarOf(entries: readonly TarSpec[]): Buffer {
  const parts: Uint8Array[] = []
  for (const entry of entries) {
    const pax: Record<string, string | Uint8Array> = { ...entry.pax }
    if (Buffer.byteLength(entry.path) > 100) pax.path = entry.path
    if (Buffer.byteLength(entry.linkPath ?? '') > 100) pax.linkpath = entry.linkPath!
    if (Object.keys(pax).length > 0) {
      const records = Buffer.concat(
        Object.entries(pax).map(([key, value]) => record(key, Buffer.from(value as string))),
      )
      parts.push(header({ path: 'pax', type: 'x', data: records }), records, padding(records.length))
    }
    const data = entry.data ?? new Uint8Array(0)
    parts.push(header(entry), data, padding(data.length))
  }
  return Buffer.concat([...parts, Buffer.alloc(1024)])
}

const padding = (length: number): Buffer => Buffer.alloc((512 - (length % 512)) % 512)

/** `length key=value\n`, where the length counts its own digits. */
function record(key: string, value: Buffer): Buffer {
  const rest = Buffer.concat([Buffer.from(` ${key}=`), value, Buffer.from('\n')])
  let length = rest.length
  while (String(length).length + rest.length !== length) length = String(length).length + rest.length
  return Buffer.concat([Buffer.from(String(length)), rest])
}

function header({
  path,
  type = '0',
  data,
  linkPath = '',
  mode,
  uid = 0,
  gid = 0,
  mtime = 1_500_000_000,
}: TarSpec): Buffer {
  const block = Buffer.alloc(512)
  const number = (value: number, at: number, length: number): void => {
    block.write(value.toString(8).padStart(length - 1, '0'), at, 'latin1')
  }
  block.write(path.slice(0, 100), 0, 100)
  number(mode ?? (type === '5' ? 0o755 : 0o644), 100, 8)
  number(uid, 108, 8)
  number(gid, 116, 8)
  number(data?.length ?? 0, 124, 12)
  number(mtime, 136, 12)
  block.write(type, 156)
  block.write(linkPath.slice(0, 100), 157, 100)
  block.write('ustar\x0000', 257, 'latin1')
  block.fill(32, 148, 156)
  const sum = block.reduce((total, byte) => total + byte, 0)
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148, 'latin1')
  return block
}
