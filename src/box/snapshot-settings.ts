/** What box a snapshot is of. One that was imported may come from anybody: all of it is checked, and what reaches out to the host is left out. */
import { SnapshotError } from '../snapshot/errors.ts'
import { IMPORT_OWNER } from '../snapshot/import.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { BoxError } from './errors.ts'
import { resolveConfig } from './options.ts'
import type { BoxConfig, BoxRecord, NetworkPolicy, PortMapping } from './record.ts'

export function settingsOf(manifest: SnapshotManifest): BoxRecord {
  const settings = manifest.settings as unknown
  if (!isObject(settings) || !isObject(settings.config)) throw bad(manifest)
  if (manifest.owner !== IMPORT_OWNER) return settings as unknown as BoxRecord
  try {
    return { ...(settings as unknown as BoxRecord), ...checkedSettings(settings, settings.config) }
  } catch (error) {
    if (error instanceof BoxError || error instanceof TypeError) throw bad(manifest, error)
    throw error
  }
}

const bad = ({ id }: SnapshotManifest, cause?: Error): SnapshotError =>
  new SnapshotError(
    'CORRUPT',
    `the snapshot ${id} does not say what box it is of${cause ? ` (${cause.message})` : ''}: remove it, or export it again`,
    { cause },
  )

function checkedSettings(
  settings: Fields,
  config: Fields,
): Pick<BoxRecord, 'imageEntrypoint' | 'imageCmd' | 'imageId'> & { config: BoxConfig } {
  const image = {
    env: {},
    workdir: text(config.workdir, 'workdir'),
    user: text(config.user, 'user'),
    entrypoint: texts(settings.imageEntrypoint, 'imageEntrypoint'),
    cmd: texts(settings.imageCmd, 'imageCmd'),
  }
  const env: Record<string, string> = {}
  if (!isObject(config.env)) throw new TypeError('its environment')
  for (const [name, value] of Object.entries(config.env)) env[name] = text(value, 'environment')
  const { command } = config
  const accel = text(config.accel, 'accel')
  if (!isAccel(accel)) throw new TypeError('its accelerator')
  const resolved = resolveConfig(
    {
      image: text(config.image, 'image'),
      cpus: config.cpus as number,
      memoryMib: config.memoryMib as number,
      diskGib: config.diskGib as number,
      env,
      accel,
      network: policy(config.network),
      ports: ports(config.ports),
      timeoutMs: config.timeoutMs as number,
      idleMs: config.idleMs as number,
      ...(config.onIdle === 'pause' ? { onIdle: 'pause' } : {}),
    },
    image,
  )
  return {
    imageId: text(settings.imageId, 'imageId'),
    imageEntrypoint: image.entrypoint,
    imageCmd: image.cmd,
    config: { ...resolved, command: command === null ? null : texts(command, 'command') },
  }
}

type Fields = Readonly<Record<string, unknown>>

const isObject = (value: unknown): value is Fields =>
  typeof value === 'object' && value !== null && !Array.isArray(value)

const isAccel = (value: string): value is BoxConfig['accel'] => ['auto', 'kvm', 'hvf', 'soft'].includes(value)

function text(value: unknown, what: string): string {
  if (typeof value === 'string' && value.length <= 65_536 && !value.includes('\0')) return value
  throw new TypeError(`its ${what}`)
}

function texts(value: unknown, what: string): string[] {
  if (Array.isArray(value) && value.length <= 4096) return value.map(each => text(each, what))
  throw new TypeError(`its ${what}`)
}

function policy(value: unknown): NetworkPolicy {
  if (value === 'full' || value === 'none') return value
  if (!isObject(value)) throw new TypeError('its network')
  return {
    ...(value.allow === undefined ? {} : { allow: texts(value.allow, 'network') }),
    ...(value.deny === undefined ? {} : { deny: texts(value.deny, 'network') }),
  }
}

/** Guest ports only: which ports of the host lead there is for the host to say. */
function ports(value: unknown): PortMapping[] {
  if (!Array.isArray(value) || value.length > 1024) throw new TypeError('its ports')
  return value.map((port: unknown) => {
    if (!isObject(port)) throw new TypeError('its ports')
    const protocol = port.protocol === 'udp' ? 'udp' : 'tcp'
    return {
      host: 0,
      guest: port.guest as number,
      protocol,
      ...(port.range === undefined ? {} : { range: port.range as number }),
    }
  })
}
