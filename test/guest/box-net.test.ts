/** The network of boxes, end to end: two boxes on real guests, one boot each for all of it. All traffic is on loopback. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import { connect, createServer as createTcpServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { assetPath, Box, Runtime } from '../../src/index.ts'

const scratch = mkdtempSync(join(tmpdir(), 'vitrine-box-net-'))
/** The default home: its images and kernels are kept from run to run. The boxes and the network are this test's own. */
const runtime = new Runtime({ defaults: { memoryMib: 256 } })
const network = `net-${process.pid}`
const LIMIT = { timeout: 120_000 }
let box: Box
let other: Box
let server: Server
let hostPort = 0

beforeAll(async () => {
  server = createServer((_request, response) => response.end('from the host\n'))
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  hostPort = (server.address() as { port: number }).port
  runtime.networks.create(network)
  const policy = { allow: ['host.vitrine.internal'] }
  const pcap = join(scratch, 'box.pcap')
  box = await Box.create({ name: `net-a-${process.pid}`, network: policy, networks: [network], pcap }, runtime)
  other = await Box.create({ name: `net-b-${process.pid}`, network: 'none', networks: [network] }, runtime)
  await Promise.all([box.start(), other.start()])
  await Promise.all([box, other].map(each => serve(each)))
}, 240_000)

afterAll(async () => {
  server?.close()
  await Promise.all([box, other].map(each => each?.remove({ force: true })))
  runtime.networks.remove(network)
  rmSync(scratch, { recursive: true })
}, 120_000)

async function serve(each: Box): Promise<void> {
  const script = 'mkdir -p /www && hostname > /www/index.html && httpd -p 8000 -h /www'
  expect((await each.exec('sh', ['-c', script])).exitCode).toBe(0)
}

const get = (from: Box, url: string) => from.exec('wget', ['-qO-', url])

async function read(stream: AsyncIterable<Buffer | string>): Promise<string> {
  let text = ''
  for await (const chunk of stream) text += String(chunk)
  return text
}

describe("a box's network", () => {
  it('is reached by connect, without a host port', LIMIT, async () => {
    const stream = await box.connect(8000)
    stream.end('GET / HTTP/1.0\r\n\r\n')
    expect(await read(stream)).toMatch(new RegExp(`200 OK[^]*${box.name}\n$`))
    await expect(box.connect(9)).rejects.toMatchObject({ code: 'REFUSED' })
    await expect(box.connect(70_000)).rejects.toMatchObject({ code: 'BAD_PORT' })
    expect(await box.ports()).toEqual([])
  })

  it('opens and closes ports while it runs: one, any, a range, a Unix socket', LIMIT, async () => {
    const [chosen] = await box.network.openPort({ host: 0, guest: 8000 })
    expect(chosen).toMatchObject({ protocol: 'tcp', bind: '127.0.0.1', guest: 8000 })
    expect(await (await fetch(`http://127.0.0.1:${chosen!.host}/`)).text()).toBe(`${box.name}\n`)
    const range = await box.network.openPort({ host: 0, guest: 8000, range: 3 })
    expect(range.map(({ guest }) => guest)).toEqual([8000, 8001, 8002])
    expect(await box.network.ports()).toHaveLength(4)
    await expect(box.network.openPort({ host: chosen!.host, guest: 1 })).rejects.toMatchObject({ code: 'PORT_IN_USE' })
    await expect(box.network.openPort({ host: 65_535, guest: 80, range: 9 })).rejects.toMatchObject({
      code: 'BAD_PORT',
    })
    for (const { host } of range) await box.network.closePort(host)
    await box.network.closePort(chosen!.host)
    await expect(box.network.closePort(chosen!.host)).rejects.toMatchObject({ code: 'INVALID' })
    await expect(fetch(`http://127.0.0.1:${chosen!.host}/`)).rejects.toThrow()
    const path = join(scratch, 'web.sock')
    await box.network.openUnixPort(path, 8000)
    const socket = connect(path)
    socket.end('GET / HTTP/1.0\r\n\r\n')
    expect(await read(socket)).toContain(box.name)
    await box.network.closeUnixPort(path)
    expect(await box.network.unixPorts()).toEqual([])
  })

  it('changes its rules while it runs, and shows what they denied', LIMIT, async () => {
    const url = `http://host.vitrine.internal:${hostPort}/`
    expect((await get(box, url)).stdout).toBe('from the host\n')
    await box.network.setPolicy('none')
    expect((await get(box, url)).exitCode).not.toBe(0)
    const denied = await box.network.denials()
    expect(denied).toContainEqual(expect.objectContaining({ protocol: 'tcp', target: '10.0.2.2', port: hostPort }))
    expect(readFileSync(box.folder.denialLog, 'utf8')).toContain(`denied tcp to 10.0.2.2 port ${hostPort}`)
    await expect(box.network.setPolicy({ allow: ['not a rule'] })).rejects.toMatchObject({ code: 'BAD_RULE' })
    await box.network.setPolicy({ allow: ['host.vitrine.internal'] })
    expect((await get(box, url)).stdout).toBe('from the host\n')
  })

  it('shows its flows and counts, and limits them', LIMIT, async () => {
    const idle = createTcpServer()
    await new Promise<void>(resolve => idle.listen(0, '127.0.0.1', resolve))
    const { port } = idle.address() as { port: number }
    const waiting = await box.spawn('nc', ['10.0.2.2', String(port)])
    let flow: unknown
    for (let tries = 0; tries < 100 && flow === undefined; tries++) {
      flow = (await box.network.flows()).find(({ remotePort, state }) => remotePort === port && state === 'established')
      await new Promise(resolve => setTimeout(resolve, 20))
    }
    expect(flow).toMatchObject({ protocol: 'tcp', guest: '10.0.2.15', remote: '10.0.2.2', retransmits: 0 })
    waiting.kill('SIGKILL')
    idle.close()
    await box.network.setBandwidth({ toGuest: 100_000 })
    expect((await get(box, `http://10.0.2.2:${hostPort}/`)).stdout).toBe('from the host\n')
    await box.network.setBandwidth({})
    expect(await box.network.counters()).toMatchObject({ malformed: 0, badChecksum: 0, spoofed: 0 })
    const { counters } = await box.metrics()
    expect(counters['network.tcpOpened']).toBeGreaterThan(3)
    expect(counters['network.denied']).toBeGreaterThan(0)
  })

  it('shares a named network with another box, which reaches nothing else', LIMIT, async () => {
    expect((await get(box, `http://${other.name}:8000/`)).stdout).toBe(`${other.name}\n`)
    expect((await get(other, `http://${box.name}.${network}:8000/`)).stdout).toBe(`${box.name}\n`)
    expect((await other.exec('ping', ['-c', '1', box.name])).exitCode).toBe(0)
    expect((await get(other, `http://10.0.2.2:${hostPort}/`)).exitCode).not.toBe(0)
    expect(runtime.networks.list()).toContainEqual(
      expect.objectContaining({
        name: network,
        members: expect.arrayContaining([expect.objectContaining({ id: box.id })]),
      }),
    )
    expect(() => runtime.networks.remove(network)).toThrow(/boxes are in the network/)
  })

  it('is shown and changed from the command line', LIMIT, async () => {
    const vitrine = (...args: string[]): { status: number | null; stdout: string; stderr: string } =>
      spawnSync(process.execPath, [assetPath('cli.js'), ...args], { encoding: 'utf8' })
    const idle = createTcpServer()
    await new Promise<void>(resolve => idle.listen(0, '127.0.0.1', resolve))
    const { port } = idle.address() as { port: number }
    const waiting = await box.spawn('nc', ['10.0.2.2', String(port)])
    await new Promise<void>(resolve => idle.once('connection', () => resolve()))
    const shown = vitrine('net', box.name)
    expect(shown.stdout).toMatch(new RegExp(`^tcp +10\\.0\\.2\\.15:\\d+ +10\\.0\\.2\\.2:${port} +established`, 'm'))
    expect(shown.stdout).toMatch(/^tcpOpened +\d+$/m)
    expect(shown.stdout).toMatch(new RegExp(`^tcp +10\\.0\\.2\\.2:${hostPort} +\\d+ `, 'm'))
    expect(JSON.parse(vitrine('net', '--json', box.name).stdout)).toMatchObject({
      flows: expect.arrayContaining([expect.objectContaining({ remotePort: port, state: 'established' })]),
      denials: expect.arrayContaining([expect.objectContaining({ target: '10.0.2.2', port: hostPort })]),
    })
    waiting.kill('SIGKILL')
    idle.close()
    const [, host] = /^127\.0\.0\.1:(\d+):8000\/tcp\n$/.exec(vitrine('port', 'add', box.name, '0:8000').stdout)!
    expect(await (await fetch(`http://127.0.0.1:${host}/`)).text()).toBe(`${box.name}\n`)
    expect(vitrine('port', 'ls', box.name).stdout).toContain(`127.0.0.1:${host}`)
    expect(vitrine('port', 'rm', box.name, host!).status).toBe(0)
    expect(vitrine('network', 'ls').stdout).toMatch(new RegExp(`^${network} +10\\.89\\.`, 'm'))
    const wrong = vitrine('net', '--allow', 'not a rule', box.name)
    expect([wrong.status, wrong.stderr]).toEqual([1, expect.stringMatching(/^vitrine: .*'not a rule'/)])
    expect(vitrine('port', 'add', box.name, `${hostPort}:80`).stderr).toMatch(/^vitrine: .*in use/)
  })

  it('is there in a box that goes on from a template, with a hardware address of its own', LIMIT, async () => {
    const addresses = new Set<string>()
    for (const warm of [false, true]) {
      const each = await Box.create({ memoryMib: 128, network: { allow: ['host.vitrine.internal'] } }, runtime)
      try {
        await each.start()
        if (warm) expect(each.bootStages!.kernelMs).toBe(0)
        // The host speaks first: the guest has not said anything yet that its address could be learned from.
        await serve(each)
        const stream = await each.connect(8000)
        stream.end('GET / HTTP/1.0\r\n\r\n')
        expect(await read(stream)).toContain(`${each.name}\n`)
        expect((await get(each, `http://host.vitrine.internal:${hostPort}/`)).stdout).toBe('from the host\n')
        addresses.add((await each.exec('cat', ['/sys/class/net/eth0/address'])).stdout)
      } finally {
        await each.remove({ force: true })
      }
    }
    expect(addresses.size).toBe(2)
  })

  it('is recorded as tshark reads it', LIMIT, async () => {
    await box.network.record(undefined)
    const file = join(scratch, 'box.pcap')
    const fields = ['-T', 'fields', '-e', 'ip.src', '-e', 'http.request.method', '-e', 'dns.qry.name']
    const { stdout, stderr } = spawnSync('tshark', ['-n', '-r', file, ...fields], { encoding: 'utf8' })
    expect(stderr).not.toMatch(/cut short|malformed/i)
    expect(stdout).toMatch(/^10\.0\.2\.15\tGET/m)
    expect(stdout).toContain('host.vitrine.internal')
    expect(stdout).toMatch(/^10\.0\.2\.2\t/m)
    const nowhere = box.network.record('/nowhere/at/all.pcap')
    await expect(nowhere).rejects.toMatchObject({ code: 'RECORDING' })
  })

  it('cannot be what it cannot be', LIMIT, async () => {
    const wrong = (options: Parameters<typeof Box.create>[0]) => Box.create(options, runtime)
    await expect(wrong({ networks: ['no-such'] })).rejects.toMatchObject({ code: 'NO_NETWORK' })
    await expect(wrong({ network: { deny: ['1.2.3.4/77'] } })).rejects.toMatchObject({ code: 'BAD_RULE' })
    await expect(wrong({ ports: [{ host: 1, guest: 0 }] })).rejects.toMatchObject({ code: 'INVALID' })
    await expect(wrong({ bandwidth: { toGuest: 1 } })).rejects.toMatchObject({ code: 'INVALID' })
    expect(() => runtime.networks.create(network)).toThrow(/exists/)
    const taken = await wrong({ ports: [{ host: hostPort, guest: 80 }] })
    await expect(taken.start()).rejects.toMatchObject({ code: 'PORT_IN_USE' })
    await taken.remove({ force: true })
  })
})
