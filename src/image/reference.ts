/** Names of images in registries, as Docker and the OCI distribution specification write them: `[registry/]name[:tag][@digest]`. */
import { ImageError } from './errors.ts'

export const DEFAULT_REGISTRY = 'docker.io'
export const DEFAULT_TAG = 'latest'

export interface Reference {
  /** Host and perhaps port, for example `docker.io` or `localhost:5000`. */
  readonly registry: string
  /** The path in the registry, for example `library/debian`. */
  readonly repository: string
  readonly tag: string | undefined
  /** `sha256:` and 64 hexadecimal digits; it wins over the tag. */
  readonly digest: string | undefined
}

const COMPONENT = /^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*$/
const TAG = /^\w[\w.-]{0,127}$/
const DIGEST = /^sha256:[0-9a-f]{64}$/
const LABEL = '[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?'
const HOST = new RegExp(`^(?:${LABEL}(?:\\.${LABEL})*|\\[[0-9a-fA-F:.]+\\])(?::[0-9]{1,5})?$`)
const MAX_NAME = 255

export const isDigest = (text: string): boolean => DIGEST.test(text)

/** Parses what a user typed; short names are names of Docker Hub. */
export function parseReference(text: string): Reference {
  const refuse = (why: string): ImageError =>
    new ImageError(
      'BAD_REFERENCE',
      `'${text.slice(0, 300)}' is not an image name (${why}): write it as [registry/]name[:tag]`,
    )
  let rest = text
  let digest: string | undefined
  const at = rest.indexOf('@')
  if (at >= 0) {
    digest = rest.slice(at + 1)
    rest = rest.slice(0, at)
    if (!DIGEST.test(digest)) throw refuse('a digest is sha256: and 64 hexadecimal digits')
  }
  let tag: string | undefined
  const colon = rest.lastIndexOf(':')
  // A colon before the last slash belongs to a port.
  if (colon > rest.lastIndexOf('/')) {
    tag = rest.slice(colon + 1)
    rest = rest.slice(0, colon)
    if (!TAG.test(tag)) throw refuse('a tag has letters, digits, _, . and -, 128 at most')
  }
  if (rest === '') throw refuse('the name is empty')
  const parts = rest.split('/')
  let registry = DEFAULT_REGISTRY
  const first = parts[0]!
  if (parts.length > 1 && (/[.:A-Z]/.test(first) || first === 'localhost')) {
    if (!HOST.test(first)) throw refuse(`'${first}' is not a host`)
    registry = first
    parts.shift()
  }
  if (registry === 'index.docker.io') registry = DEFAULT_REGISTRY
  if (registry === DEFAULT_REGISTRY && parts.length === 1) parts.unshift('library')
  for (const part of parts) {
    if (!COMPONENT.test(part)) {
      throw refuse(
        /[A-Z]/.test(part) ? `'${part}' has upper-case letters` : `'${part}' has characters that names cannot have`,
      )
    }
  }
  const repository = parts.join('/')
  if (registry.length + 1 + repository.length > MAX_NAME) throw refuse(`it is longer than ${MAX_NAME} characters`)
  if (tag === undefined && digest === undefined) tag = DEFAULT_TAG
  return { registry, repository, tag, digest }
}

/** The whole name, nothing left out. */
export function formatReference({ registry, repository, tag, digest }: Reference): string {
  return `${registry}/${repository}${tag === undefined ? '' : `:${tag}`}${digest === undefined ? '' : `@${digest}`}`
}

/** The name as people write it: without Docker Hub's defaults. */
export function familiarName(reference: Reference): string {
  const { registry, repository } = reference
  if (registry !== DEFAULT_REGISTRY) return formatReference(reference)
  const short = repository.replace(/^library\/(?=[^/]+$)/, '')
  return formatReference({ ...reference, repository: short }).slice(registry.length + 1)
}
