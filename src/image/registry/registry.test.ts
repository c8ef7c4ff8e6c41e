/** The client against a registry made of node:http that misbehaves in every way real ones do. */
import { createHash } from 'node:crypto'
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterEach, describe, expect, it } from 'vitest'
import { tarOf } from '../../../test/image/tar-writer.ts'
import type { ImageProgress } from '../progress.ts'
import { type Image, ImageStore, type ImageStoreOptions } from '../store.ts'
import { parseChallenge } from './auth.ts'
import { isLoopback } from './client.ts'
import { dockerCredentials } from './credentials.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-registry-'))
const servers: Server[] = []
afterEach(() => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections()
    server.close()
  }
})
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))

const sha = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

type Handler = (request: IncomingMessage, response: ServerResponse) => boolean | undefined

/** An image of one layer, and a server for it. `first` sees requests before the ordinary answers do. */
async function serve(
  first: Handler = () => false,
  change: (documents: Documents) => void = () => undefined,
): Promise<FakeRegistry> {
  const tar = tarOf([
    { path: 'hello', data: Buffer.alloc(200_000, 'hello ') },
    { path: 'noise', data: createNoise(300_000) },
  ])
  const documents: Documents = {
    layer: gzipSync(tar),
    config: {
      os: 'linux',
      architecture: 'amd64',
      config: { Cmd: ['sh'] },
      rootfs: { type: 'layers', diff_ids: [sha(tar)] },
    },
    manifest: { schemaVersion: 2 },
    serveLayer: undefined,
    serveConfig: undefined,
  }
  change(documents)
  const config = Buffer.from(JSON.stringify(documents.config))
  const manifest = Buffer.from(
    JSON.stringify({
      config: { mediaType: 'c', digest: sha(config), size: config.length },
      layers: [{ mediaType: 'l', digest: sha(documents.layer), size: documents.layer.length }],
      ...documents.manifest,
    }),
  )
  const blobs = new Map([
    [sha(documents.layer), documents.serveLayer ?? documents.layer],
    [sha(config), documents.serveConfig ?? config],
  ])
  const requests: IncomingMessage[] = []
  const server = createServer((request, response) => {
    requests.push(request)
    if (first(request, response)) return
    const path = request.url!
    if (path === '/v2/') return void response.end('{}')
    if (/\/manifests\//.test(path)) return void response.end(manifest)
    const blob = blobs.get(/\/blobs\/(.*)$/.exec(path)?.[1] ?? '')
    if (!blob) {
      response.statusCode = 404
      return void response.end()
    }
    const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? '')?.[1] ?? 0)
    if (from > 0) {
      response.statusCode = 206
      response.setHeader('content-range', `bytes ${from}-${blob.length - 1}/${blob.length}`)
    }
    response.end(blob.subarray(from))
  })
  servers.push(server)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  return { host: `127.0.0.1:${port}`, requests, layerDigest: sha(documents.layer), layer: documents.layer }
}

interface Documents {
  layer: Buffer
  config: object
  manifest: object
  /** What is sent in place of the layer or the config. */
  serveLayer: Buffer | undefined
  serveConfig: Buffer | undefined
}

interface FakeRegistry {
  host: string
  requests: IncomingMessage[]
  layerDigest: string
  layer: Buffer
}

function createNoise(length: number): Buffer {
  const bytes = Buffer.alloc(length)
  let state = 1
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    bytes[i] = state >>> 24
  }
  return bytes
}

let homes = 0
function storeOf(options: Partial<ImageStoreOptions> = {}): ImageStore {
  const home = join(folder, `home${homes++}`)
  return new ImageStore({ home, http: { pauseMs: 1, attempts: 3 }, credentials: async () => undefined, ...options })
}

const pull = (store: ImageStore, host: string, onProgress?: (event: ImageProgress) => void): Promise<Image> =>
  store.get(`${host}/test/app:1`, { diskBytes: 2 ** 28, ...(onProgress && { onProgress }) })

/** After a failure: nothing with a final name, and nothing in progress. */
function expectCleanCache(store: ImageStore): void {
  expect(store.cache.disks()).toEqual([])
  expect(store.list()).toEqual([])
  for (const path of store.cache.blobs())
    expect(path.endsWith(createHash('sha256').update(readFileSync(path)).digest('hex'))).toBe(true)
}

describe('pulling', { timeout: 120_000 }, () => {
  it('resumes a download that breaks off, from where it stopped', async () => {
    let cuts = 3
    const ranges: (string | undefined)[] = []
    const registry = await serve((request, response) => {
      if (!request.url!.includes('/blobs/') || !request.url!.endsWith(registry.layerDigest)) return false
      ranges.push(request.headers.range)
      if (cuts-- <= 0) return false
      const from = Number(/\d+/.exec(request.headers.range ?? '0')![0])
      response.statusCode = from > 0 ? 206 : 200
      response.setHeader('content-length', registry.layer.length - from)
      if (from > 0)
        response.setHeader('content-range', `bytes ${from}-${registry.layer.length - 1}/${registry.layer.length}`)
      response.write(registry.layer.subarray(from, from + 50_000), () => setTimeout(() => response.destroy(), 50))
      return true
    })
    const events: ImageProgress[] = []
    const image = await pull(storeOf(), registry.host, event => events.push(event))
    expect(existsSync(image.disk)).toBe(true)
    expect(ranges).toEqual([undefined, 'bytes=50000-', 'bytes=100000-', 'bytes=150000-'])
    expect(events.filter(({ type }) => type === 'retry')).toHaveLength(3)
  })

  it('goes on in another process, and starts again when the server cannot resume', async () => {
    let broken = true
    const registry = await serve((request, response) => {
      if (!request.url!.endsWith(registry.layerDigest)) return false
      // It ignores ranges, as some do.
      response.setHeader('content-length', registry.layer.length)
      if (broken) response.write(registry.layer.subarray(0, 70_000), () => setTimeout(() => response.destroy(), 50))
      else response.end(registry.layer)
      return true
    })
    const first = storeOf({ http: { attempts: 1 } })
    await expect(pull(first, registry.host)).rejects.toMatchObject({ code: 'NETWORK' })
    expectCleanCache(first)
    broken = false
    await pull(first, registry.host)
    expect(registry.requests.at(-1)!.headers.range).toBe('bytes=70000-')
  })

  it('tries again after 503 and 429, and gives up in the end', async () => {
    let refusals = 2
    const refuse: Handler = (request, response) => {
      // The probe of the protocol at /v2/ is made once only.
      if (request.url === '/v2/' || refusals <= 0) return false
      response.statusCode = refusals-- % 2 ? 503 : 429
      response.end()
      return true
    }
    await pull(storeOf(), (await serve(refuse)).host)
    expect(refusals).toBe(0)
    refusals = 3
    await expect(pull(storeOf(), (await serve(refuse)).host)).rejects.toMatchObject({ code: 'REGISTRY' })
  })

  it('refuses a layer with another digest, another length or another content than promised', async () => {
    const cases: [(documents: Documents) => void, string][] = [
      [d => (d.serveLayer = Buffer.from(d.layer).fill(7, 50, 60)), 'DIGEST_MISMATCH'],
      [d => (d.serveLayer = Buffer.concat([d.layer, Buffer.from('more')])), 'DIGEST_MISMATCH'],
      [d => (d.layer = d.layer.subarray(0, d.layer.length - 100)), 'BAD_COMPRESSION'],
      [d => (d.layer = gzipSync(tarOf([{ path: 'other', data: Buffer.from('x') }]))), 'DIGEST_MISMATCH'],
      [d => (d.layer = Buffer.from('this is no layer at all')), 'DIGEST_MISMATCH'],
    ]
    for (const [change, code] of cases) {
      const registry = await serve(undefined, change)
      const store = storeOf()
      await expect(pull(store, registry.host)).rejects.toMatchObject({ code })
      expectCleanCache(store)
    }
  })

  it('refuses damaged manifests and configs', async () => {
    const cases: [(documents: Documents) => void, string][] = [
      [d => (d.manifest = { layers: 'none' }), 'CORRUPT'],
      [d => (d.manifest = { config: { digest: 'sha256:zz', size: 1 } }), 'CORRUPT'],
      [d => (d.manifest = { layers: [{ digest: sha(d.layer), size: -1 }] }), 'CORRUPT'],
      [d => (d.manifest = { schemaVersion: 1 }), 'UNSUPPORTED'],
      [d => (d.manifest = { layers: [] }), 'CORRUPT'],
      [d => (d.config = {}), 'CORRUPT'],
      [d => (d.config = { ...d.config, config: { Cmd: 'sh' } }), 'CORRUPT'],
      [d => (d.config = { ...d.config, architecture: 'arm64' }), 'NOT_FOUND'],
      [d => (d.serveConfig = Buffer.from('{}')), 'DIGEST_MISMATCH'],
      [
        d =>
          (d.manifest = {
            manifests: [{ digest: sha(d.layer), size: 1, platform: { os: 'linux', architecture: 'arm64' } }],
          }),
        'NOT_FOUND',
      ],
    ]
    for (const [change, code] of cases) {
      const registry = await serve(undefined, change)
      const store = storeOf({ http: { attempts: 1 } })
      await expect(pull(store, registry.host), change.toString()).rejects.toMatchObject({ code })
      expectCleanCache(store)
    }
    const html = await serve(
      (request, response) => request.url !== '/v2/' && !!response.end('<html>log in to the hotel</html>'),
    )
    await expect(pull(storeOf(), html.host)).rejects.toMatchObject({ code: 'CORRUPT' })
  })

  it('refuses a layer that expands beyond the disk', async () => {
    const bomb = await serve(undefined, d => {
      d.layer = gzipSync(Buffer.alloc(140 << 20), { level: 1 })
    })
    const store = storeOf()
    await expect(store.get(`${bomb.host}/test/app:1`, { diskBytes: 2 ** 27 })).rejects.toMatchObject({
      code: 'TOO_LARGE',
    })
    expectCleanCache(store)
  })
})

describe('credentials', () => {
  it('fetches a token when asked to, with the password only for the token server', async () => {
    const seen: string[] = []
    const registry = await serve((request, response) => {
      const { authorization } = request.headers
      seen.push(`${request.url!.split('?')[0]} ${authorization ?? '-'}`)
      if (request.url!.startsWith('/token')) {
        response.end(JSON.stringify({ token: authorization ? 'tok' : 'anonymous' }))
        return true
      }
      if (authorization === 'Bearer tok') return false
      response.statusCode = 401
      response.setHeader(
        'www-authenticate',
        `Bearer realm="http://${request.headers.host}/token",service="reg",scope="repository:test/app:pull"`,
      )
      response.end()
      return true
    })
    const asked: string[] = []
    const store = storeOf({
      credentials: async host => {
        asked.push(host)
        return { username: 'u', password: 'p:q' }
      },
    })
    await pull(store, registry.host)
    expect(asked[0]).toBe(registry.host)
    expect(seen).toContain(`/token Basic ${Buffer.from('u:p:q').toString('base64')}`)
    expect(registry.requests.find(({ url }) => url!.startsWith('/token'))!.url).toContain(
      'scope=repository%3Atest%2Fapp%3Apull',
    )
    await expect(pull(storeOf(), registry.host)).rejects.toMatchObject({ code: 'UNAUTHORIZED' })
  })

  it('does not carry credentials to where it is redirected', async () => {
    const elsewhere = await serve((request, response) => {
      expect(request.headers.authorization).toBeUndefined()
      response.end(registry.layer)
      return true
    })
    const registry = await serve((request, response) => {
      if (request.headers.authorization !== 'Basic dTpw') {
        response.statusCode = 401
        response.setHeader('www-authenticate', 'Basic realm="x"')
        response.end()
        return true
      }
      if (!request.url!.endsWith(registry.layerDigest)) return false
      response.statusCode = 307
      response.setHeader('location', `http://${elsewhere.host}/somewhere`)
      response.end()
      return true
    })
    await pull(storeOf({ credentials: async () => ({ username: 'u', password: 'p' }) }), registry.host)
    expect(elsewhere.requests).toHaveLength(1)
  })

  it('uses a mirror first, and the registry when the mirror fails', async () => {
    const registry = await serve()
    const mirror = await serve((request, response) => {
      if (!request.url!.includes('/manifests/')) return false
      response.statusCode = 500
      response.end()
      return true
    })
    const mirrors = { [registry.host]: [`http://${mirror.host}`] }
    await pull(storeOf({ mirrors }), registry.host)
    expect(mirror.requests.length).toBeGreaterThan(1)
    expect(registry.requests.some(({ url }) => url!.includes('/manifests/'))).toBe(true)
    expect(registry.requests.some(({ url }) => url!.includes('/blobs/'))).toBe(false)
    await expect(
      pull(storeOf({ mirrors: { [registry.host]: ['http://example.com'] } }), registry.host),
    ).rejects.toMatchObject({
      code: 'BAD_REFERENCE',
    })
  })

  it('reads config.json, and asks helpers', async () => {
    const home = join(folder, 'docker')
    mkdirSync(home)
    const helper = join(home, 'docker-credential-vitrinetest')
    writeFileSync(
      helper,
      '#!/bin/sh\nread host\ncase $host in\n good.example) echo \'{"Username":"h","Secret":"s"}\';;\n token.example) echo \'{"Username":"<token>","Secret":"t"}\';;\n *) echo not found; exit 1;;\nesac\n',
    )
    chmodSync(helper, 0o755)
    const path = join(home, 'config.json')
    writeFileSync(
      path,
      JSON.stringify({
        auths: {
          'https://index.docker.io/v1/': { auth: Buffer.from('hub:pw').toString('base64') },
          'a.example:5000': { auth: Buffer.from('a:b:c').toString('base64') },
          'https://b.example': { identitytoken: 'refresh' },
          'bad.example': { auth: 'AAAA' },
        },
        credHelpers: {
          'good.example': 'vitrinetest',
          'token.example': 'vitrinetest',
          'none.example': 'vitrinetest',
          'gone.example': 'no-such-helper',
          'evil.example': '../sh',
        },
      }),
    )
    const before = process.env.PATH
    process.env.PATH = `${home}:${before}`
    try {
      const find = dockerCredentials(path)
      expect(await find('docker.io')).toEqual({ username: 'hub', password: 'pw' })
      expect(await find('a.example:5000')).toEqual({ username: 'a', password: 'b:c' })
      expect(await find('b.example')).toMatchObject({ identityToken: 'refresh' })
      expect(await find('good.example')).toEqual({ username: 'h', password: 's' })
      expect(await find('token.example')).toMatchObject({ identityToken: 't' })
      expect(await find('none.example')).toBeUndefined()
      expect(await find('other.example')).toBeUndefined()
      await expect(find('gone.example')).rejects.toMatchObject({ code: 'MISSING_TOOL' })
      await expect(find('evil.example')).rejects.toMatchObject({ code: 'UNAUTHORIZED' })
      await expect(find('bad.example')).rejects.toMatchObject({ code: 'UNAUTHORIZED' })
      expect(await dockerCredentials(join(home, 'absent.json'))('docker.io')).toBeUndefined()
    } finally {
      process.env.PATH = before
    }
  })

  it('reads challenges, and knows which hosts are this machine', () => {
    const { scheme, parameters } = parseChallenge(
      'Bearer realm="https://auth.example/token",service="a \\"b\\"",scope="r:x:pull,push"',
    )!
    expect(scheme).toBe('bearer')
    expect([...parameters]).toEqual([
      ['realm', 'https://auth.example/token'],
      ['service', 'a "b"'],
      ['scope', 'r:x:pull,push'],
    ])
    expect(parseChallenge('Negotiate')).toBeUndefined()
    expect(
      ['localhost', 'localhost:5000', '127.0.0.1:5000', '127.9.9.9', '[::1]:80', 'a.localhost'].every(isLoopback),
    ).toBe(true)
    expect(['localhost.example', '127.0.0.1.example', '128.0.0.1', 'example.com:127', '[::2]'].some(isLoopback)).toBe(
      false,
    )
  })
})
