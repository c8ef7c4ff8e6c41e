/** Images that are on this machine: OCI layouts and `docker save` archives, from a directory or a tar. */
import { join } from 'node:path'
import { type Bundle, DirectoryBundle } from './bundle.ts'
import { hexOf } from './cache.ts'
import { ImageError } from './errors.ts'
import {
  choosePlatform,
  type Descriptor,
  DOCUMENT_LIMIT,
  indexEntries,
  type ParsedConfig,
  parseConfig,
  parseJson,
  parseManifest,
  sha256Of,
} from './manifest.ts'

/** An image found in a bundle: its layers are files of it. */
export interface LocalImage {
  readonly digest: string
  readonly id: string
  readonly parsed: ParsedConfig
  readonly layers: readonly LocalLayer[]
}

export interface LocalLayer {
  readonly digest: string
  readonly size: number
  /** Its file in the bundle. */
  readonly path: string
}

export const isImageBundle = (bundle: Bundle): boolean => bundle.has('manifest.json') || bundle.has('index.json')

export function openLayout(path: string): Bundle {
  return new DirectoryBundle(path)
}

/** Finds the image with a tag, or the only one. */
export function findImage(bundle: Bundle, tag: string | undefined): LocalImage {
  // Docker 25 and later write both: the layout says more.
  return bundle.has('index.json') ? fromLayout(bundle, tag) : fromDockerArchive(bundle, tag)
}

const REF_NAME = 'org.opencontainers.image.ref.name'
const DOCKER_NAME = 'io.containerd.image.name'

function fromLayout(bundle: Bundle, tag: string | undefined): LocalImage {
  const entries = indexEntries(
    parseJson(bundle.read('index.json', DOCUMENT_LIMIT), `index.json of ${bundle.name}`),
    bundle.name,
  )
  if (!entries || entries.length === 0) throw new ImageError('NOT_FOUND', `${bundle.name} has no image in it`)
  let entry = chooseTag(entries, tag, bundle.name)
  for (let depth = 0; depth < 4; depth++) {
    const document = parseJson(readBlob(bundle, entry), `the manifest ${entry.digest} in ${bundle.name}`)
    const below = indexEntries(document, bundle.name)
    if (below) {
      entry = choosePlatform(below, bundle.name)
      continue
    }
    const manifest = parseManifest(document, bundle.name)
    const parsed = parseConfig(readBlob(bundle, manifest.config), `the config of ${bundle.name}`)
    const layers = manifest.layers.map(({ digest, size }) => ({ digest, size, path: blobPath(digest) }))
    return { digest: entry.digest, id: manifest.config.digest, parsed, layers }
  }
  throw new ImageError('CORRUPT', `${bundle.name}: indexes point at indexes without end`)
}

function chooseTag(entries: readonly Descriptor[], tag: string | undefined, name: string): Descriptor {
  const tagOf = ({ annotations }: Descriptor): string | undefined =>
    annotations?.[REF_NAME] ?? annotations?.[DOCKER_NAME]
  const tags = entries.map(tagOf)
  if (tag === undefined) {
    if (entries.length === 1) return entries[0]!
    // Several platforms of one image, or several images.
    if (new Set(tags).size === 1) return choosePlatform(entries, name)
    const latest = entries.find(entry => tagOf(entry) === 'latest')
    if (latest) return latest
  }
  const found = tag === undefined ? undefined : entries.find(entry => isNamed(tagOf(entry) ?? '', tag))
  if (found) return found
  const offered = tags.filter(each => each !== undefined).join(', ')
  throw new ImageError(
    'NOT_FOUND',
    `${name} has ${tag === undefined ? 'several images' : `no image '${tag}'`}: say one of ${offered || 'those with a name'} (oci:path:tag)`,
  )
}

/** A full name matches its tag alone, and itself without the registry. */
const isNamed = (full: string, tag: string): boolean =>
  full === tag || full.endsWith(`:${tag}`) || full.endsWith(`/${tag}`)

const blobPath = (digest: string): string => join('blobs', 'sha256', hexOf(digest))

function readBlob(bundle: Bundle, { digest }: Descriptor): Buffer {
  const bytes = bundle.read(blobPath(digest), DOCUMENT_LIMIT)
  if (sha256Of(bytes) !== digest) {
    throw new ImageError(
      'DIGEST_MISMATCH',
      `${blobPath(digest)} in ${bundle.name} does not have the digest in its name: it is damaged; make it again`,
    )
  }
  return bytes
}

/** manifest.json: `[{ Config, RepoTags, Layers }]`, all of them paths in the archive. */
function fromDockerArchive(bundle: Bundle, tag: string | undefined): LocalImage {
  const what = `manifest.json of ${bundle.name}`
  let images: unknown
  try {
    images = JSON.parse(bundle.read('manifest.json', DOCUMENT_LIMIT).toString())
  } catch (error) {
    if (error instanceof ImageError) throw error
    throw new ImageError('CORRUPT', `${what} is not JSON: make the archive again`)
  }
  if (!Array.isArray(images) || images.length === 0) throw new ImageError('CORRUPT', `${what} lists no image`)
  const list = images as { Config?: unknown; RepoTags?: unknown; Layers?: unknown }[]
  const tagsOf = (image: (typeof list)[number]): string[] =>
    Array.isArray(image.RepoTags) ? image.RepoTags.map(String) : []
  const image =
    tag === undefined ? list.length === 1 && list[0] : list.find(each => tagsOf(each).some(full => isNamed(full, tag)))
  if (!image) {
    throw new ImageError(
      'NOT_FOUND',
      `${bundle.name} has ${tag === undefined ? 'several images' : `no image '${tag}'`}: say one of ${list.flatMap(tagsOf).join(', ')} (docker-archive:path:tag)`,
    )
  }
  const { Config: config, Layers: paths } = image
  if (typeof config !== 'string' || !Array.isArray(paths) || !paths.every(path => typeof path === 'string')) {
    throw new ImageError('CORRUPT', `${what} does not name a config and layers`)
  }
  const bytes = bundle.read(config, DOCUMENT_LIMIT)
  const parsed = parseConfig(bytes, `the config ${config} of ${bundle.name}`)
  const id = sha256Of(bytes)
  if (paths.length !== parsed.diffIds.length) {
    throw new ImageError(
      'CORRUPT',
      `${bundle.name}: ${paths.length} layers, and ${parsed.diffIds.length} in the config`,
    )
  }
  // Layers are uncompressed there, and are known by their diff ids.
  const layers = paths.map((path, i) => ({ digest: parsed.diffIds[i]!, size: 0, path: path as string }))
  return { digest: id, id, parsed, layers }
}
