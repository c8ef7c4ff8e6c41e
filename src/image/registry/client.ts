/** A client of the OCI distribution API: manifests and blobs, with mirrors, platforms and tokens. */
import { ImageError } from '../errors.ts'
import { choosePlatform, DOCUMENT_LIMIT, indexEntries, MANIFEST_TYPES, parseJson, sha256Of } from '../manifest.ts'
import { DEFAULT_REGISTRY, formatReference, type Reference } from '../reference.ts'
import { Authorizer } from './auth.ts'
import { type CredentialSource, dockerCredentials } from './credentials.ts'
import { Http, type HttpOptions, networkError } from './http.ts'

export interface RegistryOptions {
  /** Addresses (`https://host`) to try before a registry's own: `{ 'docker.io': ['https://mirror.example'] }`. */
  readonly mirrors?: Readonly<Record<string, readonly string[]>>
  /** Registries that may be spoken to without TLS; those on this machine always may. */
  readonly insecure?: readonly string[]
  readonly credentials?: CredentialSource
  readonly http?: HttpOptions
}

export interface FetchedManifest {
  readonly bytes: Buffer
  readonly digest: string
}

/** The part of a blob's answer that a download needs. */
export interface BlobAnswer {
  readonly body: AsyncIterable<Uint8Array>
  /** True when the server goes on at the offset asked for; else it starts from the beginning. */
  readonly resumed: boolean
  /** How many bytes the server says that it sends, if it says. */
  readonly bytes: number | undefined
}

/** One address of a registry. */
interface Endpoint {
  readonly origin: string
  readonly isMirror: boolean
}

const HUB_HOST = 'registry-1.docker.io'

export class RegistryClient {
  readonly http: Http
  readonly #options: RegistryOptions
  readonly #auth: Authorizer
  readonly #endpoints = new Map<string, Promise<Endpoint[]>>()

  constructor(options: RegistryOptions = {}) {
    this.#options = options
    this.http = new Http(options.http)
    this.#auth = new Authorizer(this.http, options.credentials ?? dockerCredentials())
  }

  /** The manifest for the guest's platform: an index is followed to it. Digests are verified. */
  async manifest(reference: Reference): Promise<FetchedManifest> {
    const name = formatReference(reference)
    let wanted = reference.digest ?? reference.tag!
    for (let depth = 0; depth < 4; depth++) {
      const fetched = await this.#manifestDocument(reference, wanted)
      const entries = indexEntries(parseJson(fetched.bytes, `the manifest of ${name}`), name)
      if (!entries) return fetched
      wanted = choosePlatform(entries, name).digest
    }
    throw new ImageError('CORRUPT', `${name}: indexes point at indexes without end`)
  }

  async #manifestDocument(reference: Reference, wanted: string): Promise<FetchedManifest> {
    const response = await this.#get(reference, `manifests/${wanted}`, { accept: MANIFEST_TYPES.join(', ') })
    const bytes = await this.http.bytes(response, DOCUMENT_LIMIT)
    const digest = sha256Of(bytes)
    const stated = wanted.startsWith('sha256:') ? wanted : response.headers.get('docker-content-digest')
    if (stated?.startsWith('sha256:') && stated !== digest) {
      throw new ImageError(
        'DIGEST_MISMATCH',
        `the manifest ${wanted} of ${formatReference(reference)} has the digest ${digest}, not ${stated}: the registry or something on the way changed it`,
      )
    }
    return { bytes, digest }
  }

  /** A blob from byte `offset` on. */
  async blob(reference: Reference, digest: string, offset = 0): Promise<BlobAnswer> {
    const headers: Record<string, string> = offset > 0 ? { range: `bytes=${offset}-` } : {}
    const response = await this.#get(reference, `blobs/${digest}`, headers)
    const range = /^bytes (\d+)-/.exec(response.headers.get('content-range') ?? '')
    const length = response.headers.get('content-length')
    return {
      body: this.http.stream(response),
      resumed: response.status === 206 && Number(range?.[1]) === offset,
      bytes: length === null ? undefined : Number(length),
    }
  }

  async #get(reference: Reference, path: string, headers: Record<string, string>): Promise<Response> {
    const endpoints = await this.#endpointsOf(reference.registry)
    let failure: unknown
    for (const endpoint of endpoints) {
      try {
        return await this.#getFrom(endpoint, reference, path, headers)
      } catch (error) {
        failure = error
        // A mirror that fails in whatever way is passed over.
        if (!endpoint.isMirror) throw error
      }
    }
    throw failure
  }

  async #getFrom(
    { origin, isMirror }: Endpoint,
    reference: Reference,
    path: string,
    headers: Record<string, string>,
  ): Promise<Response> {
    const { registry, repository } = reference
    const url = new URL(`/v2/${repository}/${path}`, origin)
    for (let attempt = 0; ; attempt++) {
      const authorization = this.#auth.headerFor(origin, repository)
      const sent = authorization === undefined ? headers : { ...headers, authorization }
      const response = await this.http.request(url, { headers: sent, once: isMirror })
      if (response.ok) return response
      const challenge = response.headers.get('www-authenticate')
      await response.body?.cancel()
      if (response.status === 401 && challenge !== null && attempt < 2) {
        // A token that ran out is asked for again, once.
        this.#auth.forget(origin, repository)
        // Credentials are for the registry itself: a mirror gets none.
        if (await this.#auth.answer(isMirror ? new URL(origin).host : registry, origin, repository, challenge)) continue
      }
      throw statusError(response.status, reference, path)
    }
  }

  #endpointsOf(registry: string): Promise<Endpoint[]> {
    let endpoints = this.#endpoints.get(registry)
    if (!endpoints) {
      endpoints = this.#findEndpoints(registry)
      this.#endpoints.set(registry, endpoints)
      endpoints.catch(() => this.#endpoints.delete(registry))
    }
    return endpoints
  }

  async #findEndpoints(registry: string): Promise<Endpoint[]> {
    const mirrors = (this.#options.mirrors?.[registry] ?? []).map(address => ({
      origin: mirrorOrigin(address, registry),
      isMirror: true,
    }))
    const host = registry === DEFAULT_REGISTRY ? HUB_HOST : registry
    const own = await this.#ownOrigin(registry, host)
    return [...mirrors, { origin: own, isMirror: false }]
  }

  /** TLS, unless the registry is on this machine or was declared insecure: then whichever answers. */
  async #ownOrigin(registry: string, host: string): Promise<string> {
    const local = isLoopback(host)
    if (!local && !this.#options.insecure?.includes(registry)) return `https://${host}`
    const origins = local ? [`http://${host}`, `https://${host}`] : [`https://${host}`, `http://${host}`]
    let failure: unknown
    for (const origin of origins) {
      const url = new URL('/v2/', origin)
      try {
        const response = await this.http.request(url, { once: true })
        await response.body?.cancel()
        if (response.ok || response.status === 401) return origin
        failure ??= new ImageError(
          'REGISTRY',
          `${host} does not speak the registry protocol (HTTP ${response.status} at /v2/)`,
        )
      } catch (error) {
        failure ??= networkError(url, error)
      }
    }
    throw failure
  }
}

/** True for names and addresses of this machine. */
export function isLoopback(host: string): boolean {
  const name = host.startsWith('[') ? host.slice(1, host.indexOf(']')) : host.replace(/:\d+$/, '')
  return name === 'localhost' || name.endsWith('.localhost') || name === '::1' || /^127(?:\.\d{1,3}){3}$/.test(name)
}

function mirrorOrigin(address: string, registry: string): string {
  let url: URL | undefined
  try {
    url = new URL(address)
  } catch {
    // The error below says it.
  }
  if (!url || !/^https?:$/.test(url.protocol) || (url.protocol === 'http:' && !isLoopback(url.host))) {
    throw new ImageError(
      'BAD_REFERENCE',
      `the mirror '${address}' of ${registry} must be an https:// address (http:// only on this machine)`,
    )
  }
  return url.origin
}

function statusError(status: number, reference: Reference, path: string): ImageError {
  const name = formatReference(reference)
  if (status === 404) {
    const remedy = path.startsWith('manifests/')
      ? 'check the name and the tag'
      : 'the image is incomplete there; push it again'
    return new ImageError('NOT_FOUND', `${reference.registry} has no ${path.replace('/', ' ')} of ${name}: ${remedy}`)
  }
  if (status === 401 || status === 403) {
    return new ImageError(
      'UNAUTHORIZED',
      `${reference.registry} does not let us have ${name} (HTTP ${status}): check the name, and log in ('docker login ${reference.registry}') if it is private`,
    )
  }
  if (status === 429)
    return new ImageError(
      'REGISTRY',
      `${reference.registry} limits how often it is asked: wait, log in, or set a mirror`,
    )
  return new ImageError(
    'REGISTRY',
    `${reference.registry} failed with HTTP ${status} for ${path} of ${name}: try again later`,
  )
}
