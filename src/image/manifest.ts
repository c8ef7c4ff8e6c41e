/** Manifests, indexes and configs (OCI image-spec; Docker's schema 2), checked before anything in them is believed. */
import { createHash } from 'node:crypto'
import { ImageError } from './errors.ts'
import { isDigest } from './reference.ts'

export interface Platform {
  readonly os: string
  readonly architecture: string
}

export const GUEST_PLATFORM: Platform = { os: 'linux', architecture: 'amd64' }

export interface Descriptor {
  readonly mediaType: string
  readonly digest: string
  readonly size: number
  readonly platform?: Platform
  readonly annotations?: Readonly<Record<string, string>>
}

export interface Manifest {
  readonly config: Descriptor
  readonly layers: readonly Descriptor[]
}

/** What an image says about the commands run in it. */
export interface ImageConfig {
  readonly entrypoint: readonly string[]
  readonly cmd: readonly string[]
  readonly env: Readonly<Record<string, string>>
  /** Name or number, perhaps with a group; root when empty. */
  readonly user: string
  readonly workdir: string
  readonly labels: Readonly<Record<string, string>>
  readonly stopSignal: string | undefined
}

export interface ParsedConfig {
  readonly config: ImageConfig
  readonly diffIds: readonly string[]
  readonly platform: Platform
}

export const MANIFEST_TYPES = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.v2+json',
] as const

/** No manifest or config is as large as this. */
export const DOCUMENT_LIMIT = 8 << 20
const MAX_LAYERS = 1000

export const sha256Of = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

type Json = Record<string, unknown>

const isObject = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value)

function corrupt(what: string, why: string): ImageError {
  return new ImageError('CORRUPT', `${what}: ${why}. Have the image made or pushed again`)
}

export function parseJson(bytes: Uint8Array, what: string): Json {
  let value: unknown
  try {
    value = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes))
  } catch (error) {
    throw corrupt(what, `it is not JSON (${(error as Error).message})`)
  }
  if (!isObject(value)) throw corrupt(what, 'it is not a JSON object')
  return value
}

function descriptorOf(value: unknown, what: string): Descriptor {
  if (!isObject(value)) throw corrupt(what, 'a descriptor is missing')
  const { mediaType, digest, size, platform, annotations } = value
  if (typeof digest !== 'string' || !isDigest(digest)) {
    throw corrupt(what, `a descriptor's digest is not sha256: '${String(digest).slice(0, 80)}'`)
  }
  if (typeof size !== 'number' || !Number.isSafeInteger(size) || size < 0)
    throw corrupt(what, `the size of ${digest} is not a number`)
  return {
    mediaType: typeof mediaType === 'string' ? mediaType : '',
    digest,
    size,
    ...(isObject(platform) && { platform: { os: String(platform.os), architecture: String(platform.architecture) } }),
    ...(isObject(annotations) && { annotations: strings(annotations) }),
  }
}

/** An index's or manifest list's entries, or undefined when the document is a manifest. */
export function indexEntries(document: Json, what: string): Descriptor[] | undefined {
  if (!Array.isArray(document.manifests)) return undefined
  return document.manifests.map(entry => descriptorOf(entry, what))
}

/** The entry for the guest's platform. A lone entry without a platform is taken as it is. */
export function choosePlatform(
  entries: readonly Descriptor[],
  what: string,
  wanted: Platform = GUEST_PLATFORM,
): Descriptor {
  const match = entries.find(
    ({ platform }) => platform?.os === wanted.os && platform.architecture === wanted.architecture,
  )
  if (match) return match
  if (entries.length === 1 && !entries[0]!.platform) return entries[0]!
  const offered = entries.flatMap(({ platform }) => (platform ? [`${platform.os}/${platform.architecture}`] : []))
  throw new ImageError(
    'NOT_FOUND',
    `${what} has no image for ${wanted.os}/${wanted.architecture}, only for ${[...new Set(offered)].join(', ') || 'nothing'}: choose another image`,
  )
}

export function parseManifest(document: Json, what: string): Manifest {
  if (document.schemaVersion === 1) {
    throw new ImageError('UNSUPPORTED', `${what} has Docker's old schema 1: push it again with a current tool`)
  }
  if (!Array.isArray(document.layers)) throw corrupt(what, 'the manifest has no layers')
  if (document.layers.length > MAX_LAYERS) throw corrupt(what, `the manifest has ${document.layers.length} layers`)
  return {
    config: descriptorOf(document.config, what),
    layers: document.layers.map(layer => descriptorOf(layer, what)),
  }
}

export function parseConfig(bytes: Uint8Array, what: string): ParsedConfig {
  const document = parseJson(bytes, what)
  const rootfs = document.rootfs
  const diffIds = isObject(rootfs) ? rootfs.diff_ids : undefined
  if (!Array.isArray(diffIds) || !diffIds.every(id => typeof id === 'string' && isDigest(id))) {
    throw corrupt(what, 'it does not list the layers (rootfs.diff_ids), so it is not the config of an image')
  }
  const inner = isObject(document.config) ? document.config : {}
  return {
    config: imageConfigOf(inner, what),
    diffIds: diffIds as string[],
    platform: { os: String(document.os ?? 'linux'), architecture: String(document.architecture ?? 'amd64') },
  }
}

function imageConfigOf(inner: Json, what: string): ImageConfig {
  const list = (key: string): string[] => {
    const value = inner[key]
    if (value === undefined || value === null) return []
    if (!Array.isArray(value) || !value.every(item => typeof item === 'string'))
      throw corrupt(what, `${key} is not a list of strings`)
    return value as string[]
  }
  const word = (key: string): string => {
    const value = inner[key] ?? ''
    if (typeof value !== 'string') throw corrupt(what, `${key} is not a string`)
    return value
  }
  const env: Record<string, string> = {}
  for (const pair of list('Env')) {
    const equals = pair.indexOf('=')
    if (equals > 0) env[pair.slice(0, equals)] = pair.slice(equals + 1)
  }
  return {
    entrypoint: list('Entrypoint'),
    cmd: list('Cmd'),
    env,
    user: word('User'),
    workdir: word('WorkingDir') || '/',
    labels: isObject(inner.Labels) ? strings(inner.Labels) : {},
    stopSignal: word('StopSignal') || undefined,
  }
}

function strings(object: Json): Record<string, string> {
  const result: Record<string, string> = {}
  for (const [key, value] of Object.entries(object)) if (typeof value === 'string') result[key] = value
  return result
}

/** The identity of layers in their order (image-spec, config.md, "Layer ChainID"). */
export function chainId(diffIds: readonly string[]): string {
  let chain = ''
  for (const id of diffIds) chain = chain === '' ? id : sha256Of(Buffer.from(`${chain} ${id}`))
  return chain === '' ? sha256Of(new Uint8Array(0)) : chain
}
