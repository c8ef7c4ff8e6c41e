/** HTTP for registries: redirects that do not leak credentials, retries with growing pauses, and errors that say what to do. */
import { setTimeout as sleep } from 'node:timers/promises'
import { ImageError } from '../errors.ts'

export interface HttpOptions {
  /** How often a request is made in all when the network or the server fails. */
  readonly attempts?: number
  /** Without any byte for so long, a request has failed. */
  readonly idleMs?: number
  readonly userAgent?: string
  /** The first pause before a request is made again; it doubles. */
  readonly pauseMs?: number
}

export interface HttpRequest {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string
  /** No further attempts: the caller has another address to try. */
  readonly once?: boolean
}

const MAX_REDIRECTS = 8
const RETRIED = new Set([408, 425, 429, 500, 502, 503, 504])
const MAX_PAUSE_MS = 30_000

export class Http {
  readonly attempts: number
  readonly idleMs: number
  readonly #pauseMs: number
  readonly #userAgent: string

  constructor({ attempts = 4, idleMs = 60_000, userAgent = 'vitrine', pauseMs = 300 }: HttpOptions = {}) {
    this.attempts = attempts
    this.idleMs = idleMs
    this.#pauseMs = pauseMs
    this.#userAgent = userAgent
  }

  /** Resolves with whatever the server finally says; rejects with NETWORK when nobody answers. */
  async request(url: URL, { method = 'GET', headers = {}, body, once = false }: HttpRequest): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      let pause: number
      try {
        const response = await this.#follow(url, method, headers, body)
        if (!RETRIED.has(response.status) || attempt >= this.attempts || once) return response
        pause = this.pause(attempt, response.headers.get('retry-after'))
        await response.body?.cancel()
      } catch (error) {
        if (attempt >= this.attempts || once || error instanceof ImageError) throw networkError(url, error)
        pause = this.pause(attempt, null)
      }
      await sleep(pause)
    }
  }

  pause(attempt: number, retryAfter: string | null): number {
    const asked = retryAfter !== null && /^\d+$/.test(retryAfter) ? Number(retryAfter) * 1000 : 0
    return Math.min(Math.max(asked, this.#pauseMs * 2 ** (attempt - 1)), MAX_PAUSE_MS)
  }

  async #follow(url: URL, method: string, headers: Readonly<Record<string, string>>, body?: string): Promise<Response> {
    let at = url
    let sent: Record<string, string> = { 'user-agent': this.#userAgent, ...headers }
    for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
      const timer = new AbortController()
      const timeout = setTimeout(() => timer.abort(new Error('no answer')), this.idleMs)
      let response: Response
      try {
        // Blobs are bytes: no transfer encoding may be undone behind our back.
        response = await fetch(at, {
          method,
          headers: { 'accept-encoding': 'identity', ...sent },
          redirect: 'manual',
          signal: timer.signal,
          ...(body !== undefined && { body }),
        })
      } finally {
        clearTimeout(timeout)
      }
      const location = response.headers.get('location')
      if (![301, 302, 303, 307, 308].includes(response.status) || location === null) return response
      await response.body?.cancel()
      const next = new URL(location, at)
      if (next.protocol !== 'https:' && next.protocol !== 'http:')
        throw new ImageError('REGISTRY', `${at.host} redirects to ${next.protocol}`)
      if (at.protocol === 'https:' && next.protocol === 'http:') {
        throw new ImageError('REGISTRY', `${at.host} redirects to ${next.host} without TLS: refused`)
      }
      if (next.origin !== at.origin) {
        const { authorization: _, ...kept } = sent
        sent = kept
      }
      at = next
    }
    throw new ImageError('REGISTRY', `${url.host} redirects in circles`)
  }

  /** The whole body as bytes, up to a limit. */
  async bytes(response: Response, limit: number): Promise<Buffer> {
    const parts: Uint8Array[] = []
    let size = 0
    for await (const part of this.stream(response)) {
      size += part.length
      if (size > limit)
        throw new ImageError(
          'REGISTRY',
          `${new URL(response.url).host} sent more than ${limit} bytes where a document was due`,
        )
      parts.push(part)
    }
    return Buffer.concat(parts)
  }

  async text(response: Response, limit: number): Promise<string> {
    return (await this.bytes(response, limit)).toString()
  }

  /** The body piece by piece; a pause longer than `idleMs` is a failure. */
  async *stream(response: Response): AsyncGenerator<Uint8Array, void, void> {
    if (!response.body) return
    const reader = response.body.getReader()
    try {
      for (;;) {
        let timeout: NodeJS.Timeout | undefined
        const stalled = new Promise<never>((_, reject) => {
          timeout = setTimeout(() => reject(new Error(`no data for ${this.idleMs / 1000} s`)), this.idleMs)
        })
        try {
          const { done, value } = await Promise.race([reader.read(), stalled])
          if (done) return
          yield value
        } finally {
          clearTimeout(timeout)
        }
      }
    } finally {
      await reader.cancel().catch(() => undefined)
    }
  }
}

export function networkError(url: URL, error: unknown): ImageError {
  if (error instanceof ImageError) return error
  const cause = (error as { cause?: { code?: string; message?: string } }).cause
  const code = cause?.code ?? cause?.message ?? (error as Error).message
  const remedy =
    code === 'ENOTFOUND' || code === 'EAI_AGAIN'
      ? 'check the name of the registry and that this machine has a network'
      : code === 'ECONNREFUSED'
        ? 'check that the registry runs and its port'
        : 'check the network, then try again: what was fetched is kept'
  return new ImageError('NETWORK', `${url.host} cannot be reached (${code}): ${remedy}`, { cause: error })
}
