/** The servers that the programs of a guest talk to, all on loopback: HTTP, HTTPS, a Debian repository, git, an npm registry. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer as createHttpServer, type IncomingMessage, type RequestListener, type Server } from 'node:http'
import { createServer as createHttpsServer } from 'node:https'
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net'
import { join } from 'node:path'

export const HOST = 'host.vitrine.internal'

/** Bytes that anybody can make again: a counter, encrypted by nobody. */
export function* pattern(length: number): Generator<Buffer> {
  const CHUNK = 1 << 16
  for (let at = 0; at < length; at += CHUNK) {
    const chunk = Buffer.alloc(Math.min(CHUNK, length - at))
    for (let i = 0; i + 4 <= chunk.length; i += 4)
      chunk.writeUInt32LE(Math.imul((at + i) ^ 0x5bd1, 0x9e37_79b1) >>> 0, i)
    yield chunk
  }
}

export function patternDigest(length: number): string {
  const hash = createHash('sha256')
  for (const chunk of pattern(length)) hash.update(chunk)
  return hash.digest('hex')
}

async function sendPattern(response: import('node:http').ServerResponse, length: number): Promise<void> {
  response.setHeader('content-length', length)
  for (const chunk of pattern(length)) {
    if (!response.write(chunk)) await new Promise(resolve => response.once('drain', resolve))
    if (response.destroyed) return
  }
  response.end()
}

function digestOf(request: IncomingMessage): Promise<string> {
  const hash = createHash('sha256')
  return new Promise((resolve, reject) => {
    request
      .on('data', data => hash.update(data))
      .on('end', () => resolve(hash.digest('hex')))
      .on('error', reject)
  })
}

function runIn(folder: string, command: string, ...args: string[]): string {
  const env = { ...process.env, GIT_CONFIG_GLOBAL: '/dev/null', GIT_AUTHOR_DATE: '2020-01-01T00:00:00Z' }
  return execFileSync(command, args, { cwd: folder, encoding: 'utf8', env, stdio: ['ignore', 'pipe', 'pipe'] })
}

/** A repository with one package, as apt wants it. */
function makeRepository(folder: string): void {
  const root = join(folder, 'vitrine-hello')
  mkdirSync(join(root, 'DEBIAN'), { recursive: true })
  mkdirSync(join(root, 'usr/bin'), { recursive: true })
  const control = [
    'Package: vitrine-hello',
    'Version: 1.2',
    'Architecture: all',
    'Maintainer: Nobody <nobody@example.org>',
  ]
  writeFileSync(join(root, 'DEBIAN/control'), `${[...control, 'Description: a test'].join('\n')}\n`)
  writeFileSync(join(root, 'usr/bin/vitrine-hello'), '#!/bin/sh\necho hello from a package\n', { mode: 0o755 })
  runIn(folder, 'dpkg-deb', '--root-owner-group', '-b', root, 'hello.deb')
  const deb = readFileSync(join(folder, 'hello.deb'))
  const sum = createHash('sha256').update(deb).digest('hex')
  const fields = runIn(folder, 'dpkg-deb', '-f', 'hello.deb').trim()
  writeFileSync(join(folder, 'Packages'), `${fields}\nFilename: ./hello.deb\nSize: ${deb.length}\nSHA256: ${sum}\n`)
}

/** A git repository of two commits and a blob; its head. */
function makeGit(folder: string): string {
  const work = join(folder, 'work')
  mkdirSync(work)
  const git = (...args: string[]): string =>
    runIn(work, 'git', '-c', 'user.name=Nobody', '-c', 'user.email=nobody@example.org', ...args)
  git('init', '-q', '-b', 'main')
  for (const [i, text] of ['one\n', Buffer.concat([...pattern(300_000)])].entries()) {
    writeFileSync(join(work, `file${i}`), text)
    git('add', '.')
    git('commit', '-q', '-m', `commit ${i}`)
  }
  runIn(folder, 'git', 'clone', '-q', '--bare', 'work', 'repo.git')
  runIn(join(folder, 'repo.git'), 'git', 'update-server-info')
  return git('rev-parse', 'HEAD').trim()
}

/** Two packages, one of which needs the other; tarballs as npm makes them. */
function makePackages(folder: string): void {
  for (const [name, dependencies] of [
    ['vitrine-inner', {}],
    ['vitrine-outer', { 'vitrine-inner': '^1.0.0' }],
  ] as const) {
    const root = join(folder, name)
    mkdirSync(root)
    writeFileSync(join(root, 'package.json'), JSON.stringify({ name, version: '1.0.0', dependencies }))
    const needs = name === 'vitrine-outer' ? "require('vitrine-inner') + ' and outer'" : "'inner'"
    writeFileSync(join(root, 'index.js'), `module.exports = ${needs}\n`)
    runIn(folder, 'npm', 'pack', '--silent', `./${name}`)
  }
}

function registryAnswer(folder: string, name: string, base: string): string | undefined {
  const file = `${name}-1.0.0.tgz`
  if (!readdirSync(folder).includes(file)) return undefined
  const manifest = JSON.parse(readFileSync(join(folder, name, 'package.json'), 'utf8')) as object
  const integrity = `sha512-${createHash('sha512')
    .update(readFileSync(join(folder, file)))
    .digest('base64')}`
  const version = { ...manifest, dist: { tarball: `${base}/npm/${file}`, integrity } }
  return JSON.stringify({ name, 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': version } })
}

export class LoopbackServers {
  readonly head: string
  /** What was uploaded, by path. */
  readonly uploads = new Map<string, string>()
  readonly #folder: string
  readonly #closers: (() => void)[] = []
  http = 0
  http6 = 0
  https = 0
  git = 0
  echo = 0

  private constructor(folder: string) {
    this.#folder = folder
    for (const name of ['apt', 'git', 'npm']) mkdirSync(join(folder, name))
    makeRepository(join(folder, 'apt'))
    this.head = makeGit(join(folder, 'git'))
    makePackages(join(folder, 'npm'))
    const subject = ['-subj', `/CN=${HOST}`, '-addext', `subjectAltName=DNS:${HOST}`]
    const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', 'key.pem']
    runIn(folder, 'openssl', 'req', '-x509', ...key, '-out', 'cert.pem', '-days', '2', ...subject)
  }

  static async start(folder: string): Promise<LoopbackServers> {
    const servers = new LoopbackServers(folder)
    const handler: RequestListener = (request, response) => void servers.#serve(request, response)
    const tls = { key: readFileSync(join(folder, 'key.pem')), cert: readFileSync(join(folder, 'cert.pem')) }
    // Node ends a request that takes longer than five minutes, which a GiB from a busy software CPU does.
    const patient = { requestTimeout: 0 }
    servers.http = await servers.#listen(createHttpServer(patient, handler), '127.0.0.1')
    servers.http6 = await servers.#listen(createHttpServer(patient, handler), '::1')
    servers.https = await servers.#listen(createHttpsServer({ ...tls, ...patient }, handler), '127.0.0.1')
    servers.echo = await servers.#listen(
      createTcpServer({ allowHalfOpen: true }, socket => {
        socket.on('error', () => {})
        socket.pipe(socket)
      }),
      '127.0.0.1',
    )
    await servers.#startGit()
    return servers
  }

  get certificate(): string {
    return readFileSync(join(this.#folder, 'cert.pem'), 'utf8')
  }

  async #listen(server: Server | import('node:net').Server, host: string): Promise<number> {
    await new Promise<void>(resolve => server.listen({ port: 0, host, backlog: 1024 }, resolve))
    this.#closers.push(() => {
      server.close()
      if ('closeAllConnections' in server) server.closeAllConnections()
    })
    return (server.address() as AddressInfo).port
  }

  async #startGit(): Promise<void> {
    const free = createTcpServer()
    await new Promise<void>(resolve => free.listen(0, '127.0.0.1', resolve))
    this.git = (free.address() as AddressInfo).port
    await new Promise(resolve => free.close(resolve))
    const where = [
      '--listen=127.0.0.1',
      `--port=${this.git}`,
      `--base-path=${join(this.#folder, 'git')}`,
      '--export-all',
    ]
    const daemon: ChildProcess = spawn('git', ['daemon', '--reuseaddr', ...where], { stdio: 'ignore', detached: true })
    // The daemon's own child does the work: the whole group is ended.
    this.#closers.push(() => daemon.pid !== undefined && process.kill(-daemon.pid))
    for (let tries = 0; tries < 100; tries++) {
      const up = await new Promise<boolean>(resolve => {
        const socket = connect(this.git, '127.0.0.1', () => resolve(true)).on('error', () => resolve(false))
        socket.on('connect', () => socket.destroy())
      })
      if (up) return
      await new Promise(resolve => setTimeout(resolve, 50))
    }
    throw new Error('git daemon did not start to listen')
  }

  async #serve(request: IncomingMessage, response: import('node:http').ServerResponse): Promise<void> {
    const path = decodeURIComponent((request.url ?? '/').split('?')[0]!)
    if (request.method === 'PUT') {
      this.uploads.set(path, await digestOf(request))
      response.end('thanks')
      return
    }
    const bytes = /^\/bytes\/(\d+)$/.exec(path)
    if (bytes) return sendPattern(response, Number(bytes[1]))
    const name = /^\/npm\/([a-z-]+)$/.exec(path)?.[1]
    const base = `http://${request.headers.host}`
    const answer = name && registryAnswer(join(this.#folder, 'npm'), name, base)
    if (answer) return void response.setHeader('content-type', 'application/json').end(answer)
    const file = join(this.#folder, path)
    if (path.includes('..') || !statSync(file, { throwIfNoEntry: false })?.isFile()) {
      response.writeHead(404).end()
      return
    }
    response.end(readFileSync(file))
  }

  close(): void {
    for (const close of this.#closers.splice(0)) close()
  }
}
