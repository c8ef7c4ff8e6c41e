/** From a 401 to an Authorization header (distribution-spec; the token protocol of Docker's registry). */
import { ImageError } from '../errors.ts'
import type { CredentialSource, Credentials } from './credentials.ts'
import type { Http } from './http.ts'

interface Challenge {
  readonly scheme: 'basic' | 'bearer'
  readonly parameters: ReadonlyMap<string, string>
}

/** Parses WWW-Authenticate; of several challenges the first that we can meet. */
export function parseChallenge(header: string): Challenge | undefined {
  const match = /\b(bearer|basic)\b\s*/i.exec(header)
  if (!match) return undefined
  const parameters = new Map<string, string>()
  const rest = header.slice(match.index + match[0].length)
  for (const [, key, quoted, plain] of rest.matchAll(/([\w-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))/g)) {
    parameters.set(key!.toLowerCase(), quoted?.replaceAll(/\\(.)/g, '$1') ?? plain ?? '')
  }
  return { scheme: match[1]!.toLowerCase() as Challenge['scheme'], parameters }
}

export const basic = ({ username, password }: Credentials): string =>
  `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`

/** Keeps what was granted, per registry and repository. */
export class Authorizer {
  readonly #http: Http
  readonly #credentials: CredentialSource
  readonly #granted = new Map<string, string>()

  constructor(http: Http, credentials: CredentialSource) {
    this.#http = http
    this.#credentials = credentials
  }

  headerFor(origin: string, repository: string): string | undefined {
    return this.#granted.get(`${origin} ${repository}`)
  }

  forget(origin: string, repository: string): void {
    this.#granted.delete(`${origin} ${repository}`)
  }

  /** Meets a challenge; false when there is nothing to meet it with. */
  async answer(registry: string, origin: string, repository: string, header: string): Promise<boolean> {
    const challenge = parseChallenge(header)
    if (!challenge) return false
    const credentials = await this.#credentials(registry)
    const key = `${origin} ${repository}`
    if (challenge.scheme === 'basic') {
      if (!credentials) return false
      this.#granted.set(key, basic(credentials))
      return true
    }
    this.#granted.set(key, `Bearer ${await this.#token(registry, origin, repository, challenge, credentials)}`)
    return true
  }

  async #token(
    registry: string,
    origin: string,
    repository: string,
    { parameters }: Challenge,
    credentials: Credentials | undefined,
  ): Promise<string> {
    let realm: URL
    try {
      realm = new URL(parameters.get('realm') ?? '', origin)
    } catch {
      throw new ImageError('REGISTRY', `${registry} asks for a token without saying where to get it`)
    }
    // A registry over TLS cannot talk us into showing a password in the clear.
    if (realm.protocol !== 'https:' && new URL(origin).protocol === 'https:') {
      throw new ImageError('REGISTRY', `${registry} wants its tokens fetched without TLS from ${realm.host}: refused`)
    }
    const service = parameters.get('service')
    const scope = parameters.get('scope') || `repository:${repository}:pull`
    const headers: Record<string, string> = {}
    let body: string | undefined
    if (credentials?.identityToken) {
      const form = new URLSearchParams({
        grant_type: 'refresh_token',
        refresh_token: credentials.identityToken,
        scope,
        client_id: 'vitrine',
      })
      if (service !== undefined) form.set('service', service)
      body = form.toString()
      headers['content-type'] = 'application/x-www-form-urlencoded'
    } else {
      if (service !== undefined) realm.searchParams.set('service', service)
      realm.searchParams.set('scope', scope)
      if (credentials) headers.authorization = basic(credentials)
    }
    const response = await this.#http.request(realm, { headers, ...(body !== undefined && { method: 'POST', body }) })
    const text = await this.#http.text(response, 1 << 20)
    if (!response.ok) {
      throw new ImageError(
        'UNAUTHORIZED',
        `${registry} gives no token for ${repository} (HTTP ${response.status}): check the name, and log in ('docker login ${registry}') if it is private`,
      )
    }
    try {
      const { token, access_token } = JSON.parse(text) as { token?: unknown; access_token?: unknown }
      const value = token ?? access_token
      if (typeof value === 'string' && /^[\x21-\x7e]+$/.test(value)) return value
    } catch {
      // Falls through to the error.
    }
    throw new ImageError('REGISTRY', `${realm.host} answered the request for a token with something else`)
  }
}
