/** The stack against the Linux kernel's own, through a tap in a namespace of the test's own. */
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer as createHttpServer } from 'node:http'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { makeAnswer, readQuestion, TYPE_A } from './dns/message.ts'
import { type Impairment, Wire, type WireOptions, wireUnavailable } from './testing/wire.ts'

const reason = wireUnavailable()
let wire: Wire
const servers: Server[] = []

function open(options: WireOptions = {}): void {
  wire = new Wire(options)
}

afterEach(() => {
  wire?.close()
  for (const server of servers.splice(0)) server.close()
})

const bytesOf = (length: number): Buffer => {
  const bytes = Buffer.alloc(length)
  for (let i = 0; i < length; i += 4)
    bytes.writeUInt32LE(Math.imul(i ^ 0x5bd1, 0x9e37_79b1) >>> 0, Math.min(i, length - 4))
  return bytes
}
const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex')

async function listen(server: Server, host = '127.0.0.1'): Promise<number> {
  servers.push(server)
  // Closing the wire resets what is still open; what a test sends is compared at its other end.
  server.on('connection', (socket: Socket) => socket.on('error', () => {}))
  await new Promise<void>(resolve => server.listen(0, host, resolve))
  return (server.address() as { port: number }).port
}

/** A server that adds up what it is sent. */
function receiver(): { server: Server; ended: () => boolean; digest: () => string } {
  const hash = createHash('sha256')
  let ended = false
  const server = createServer(socket => {
    socket.on('data', chunk => hash.update(chunk))
    socket.on('end', () => {
      ended = true
    })
  })
  return { server, ended: () => ended, digest: () => hash.digest('hex') }
}

describe.skipIf(reason)(`the network with Linux as its guest${reason ? `: ${reason}` : ''}`, () => {
  it('answers ARP, neighbour discovery and pings', async () => {
    open()
    const four = await wire.run(['busybox', 'ping', '-c', '2', '-W', '2', '10.0.2.2'])
    expect(four.stdout).toContain('2 packets received')
    const six = await wire.run(['busybox', 'ping', '-c', '2', '-s', '1400', '-W', '2', 'fd76:6974:7269::2'])
    expect(six.stdout).toContain('2 packets received')
    // An address that is not there is not answered for.
    const none = await wire.run(['busybox', 'ping', '-c', '1', '-W', '1', '10.0.2.77'])
    expect(none.stdout).toContain('100% packet loss')
    expect(wire.stack.core.counters).toMatchObject({ badChecksum: 0, malformed: 0, spoofed: 0 })
  })

  it('gives a lease by DHCP, and an address by router advertisement', async () => {
    open({ configure: false })
    const show = 'echo "$1 ip=$ip router=$router dns=$dns mask=$mask lease=$lease"'
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-net-'))
    writeFileSync(join(folder, 'show'), `#!/bin/sh\n${show}\n`, { mode: 0o755 })
    const lease = await wire.run([
      'busybox',
      'udhcpc',
      '-i',
      'eth0',
      '-n',
      '-q',
      '-f',
      '-t',
      '3',
      '-s',
      join(folder, 'show'),
    ])
    rmSync(folder, { recursive: true })
    expect(lease.stdout).toContain('bound ip=10.0.2.15 router=10.0.2.2 dns=10.0.2.3 mask=24 lease=86400')
    // The kernel waits for a random while before it asks.
    const script =
      'for i in $(seq 100); do ip -6 route | grep -q default && break; sleep 0.1; done; ip -6 -o addr; ip -6 route'
    const addresses = await wire.run(['sh', '-c', script])
    expect(addresses.stdout).toMatch(/fd76:6974:7269:0?:[0-9a-f:]+\/64 scope global/)
    expect(addresses.stdout).toMatch(/default via fe80::5055:aff:fe00:202/)
  })

  it('answers questions: its own names, a resolver, and from what it kept', async () => {
    let asked = 0
    const resolver = createSocket('udp4')
    resolver.on('message', (query, from) => {
      asked++
      const question = readQuestion(query)!
      const answer = makeAnswer(query, question, 0, question.type === TYPE_A ? [Uint8Array.from([192, 0, 2, 7])] : [])
      resolver.send(answer, from.port, from.address)
    })
    await new Promise<void>(resolve => resolver.bind(0, '127.0.0.1', resolve))
    const resolverPort = resolver.address().port
    open({ description: { resolvers: ['127.0.0.1'], hosts: { 'other.box': '10.1.1.1' } }, stack: { resolverPort } })
    const ask = (name: string): Promise<{ stdout: string }> =>
      wire.run(['busybox', 'nslookup', '-type=a', name, '10.0.2.3'])
    expect((await ask('example.org')).stdout).toContain('Address: 192.0.2.7')
    expect((await ask('EXAMPLE.org')).stdout).toContain('Address: 192.0.2.7')
    expect(asked).toBe(1)
    expect((await ask('host.vitrine.internal')).stdout).toContain('Address: 10.0.2.2')
    expect((await ask('other.box')).stdout).toContain('Address: 10.1.1.1')
    expect(asked).toBe(1)
    expect(wire.stack.core.counters).toMatchObject({ dnsQueries: 4, dnsCached: 1, dnsFailed: 0 })
    wire.stack.changePolicy({ allow: ['*.vitrine.example'] })
    expect((await ask('example.org')).stdout).toMatch(/REFUSED/)
    resolver.close()
  })

  it('carries datagrams both ways over IPv4 and IPv6, and says when nobody is there', async () => {
    open()
    for (const [family, host, to] of [
      ['udp4', '127.0.0.1', 'UDP4:10.0.2.2'],
      ['udp6', '::1', 'UDP6:[fd76:6974:7269::2]'],
    ] as const) {
      const echo = createSocket(family)
      echo.on('message', (message, from) =>
        echo.send(Buffer.concat([Buffer.from('>'), message]), from.port, from.address),
      )
      await new Promise<void>(resolve => echo.bind(0, host, resolve))
      const { port } = echo.address()
      const heard = await wire.run(['socat', '-t', '0.5', '-', `${to}:${port}`], 5000, Buffer.from('hello'))
      expect(heard.stdout).toBe('>hello')
      echo.close()
      await new Promise(resolve => setImmediate(resolve))
      const script = `(echo a; sleep 0.2; echo b; sleep 0.2) | socat -t 0.5 - ${to}:${port}`
      const refused = await wire.run(['sh', '-c', script], 5000)
      expect(refused.stderr).toContain('Connection refused')
    }
  })

  it.each([true, false])(
    'carries a download and an upload, offloads %s',
    async offloads => {
      open({ offloads })
      const data = bytesOf(Number(process.env.VITRINE_NET_BYTES ?? 4 << 20))
      const down = await listen(createServer(socket => socket.end(data)))
      const got = await wire.run(['sh', '-c', `socat -u TCP:10.0.2.2:${down} - | sha256sum`], 120_000)
      expect(got.stdout).toContain(digest(data))
      const upload = receiver()
      const up = await listen(upload.server)
      const sent = await wire.run(['socat', '-u', '-', `TCP:10.0.2.2:${up}`], 120_000, data)
      expect(sent).toMatchObject({ status: 0, stderr: '' })
      await wire.turn(() => upload.ended(), 60_000)
      expect(upload.digest()).toBe(digest(data))
      expect(wire.stack.core.counters).toMatchObject({ badChecksum: 0, malformed: 0 })
    },
    300_000,
  )

  it.each<[string, Impairment]>([
    ['loss', { seed: 11, loss: 0.03 }],
    ['reordering and doubles', { seed: 12, reorder: 0.1, duplicate: 0.05 }],
    ['all of it', { seed: 13, loss: 0.02, reorder: 0.05, duplicate: 0.02 }],
  ])(
    'loses nothing to %s',
    async (_, impairment) => {
      open({ impairment, offloads: false })
      const data = bytesOf(1 << 20)
      const down = await listen(createServer(socket => socket.end(data)))
      const got = await wire.run(['sh', '-c', `socat -u TCP:10.0.2.2:${down} - | sha256sum`], 60_000)
      expect(got.stdout).toContain(digest(data))
      const upload = receiver()
      const sent = await wire.run(['socat', '-u', '-', `TCP:10.0.2.2:${await listen(upload.server)}`], 60_000, data)
      expect(sent.status).toBe(0)
      await wire.turn(() => upload.ended(), 60_000)
      expect(upload.digest()).toBe(digest(data))
      const { counters } = wire.stack.core
      if (impairment.loss) expect(counters.retransmits).toBeGreaterThan(0)
      if (impairment.reorder) expect(counters.outOfOrder).toBeGreaterThan(0)
      expect(wire.stack.tcp.held).toBe(0)
    },
    120_000,
  )

  it.each<[string, Impairment, string]>([
    ['delay', { seed: 14, delay: 8 }, ''],
    ['tiny windows', { seed: 15 }, ',rcvbuf=1024'],
    ['delay, loss, doubles and tiny windows', { seed: 16, delay: 4, loss: 0.01, duplicate: 0.02 }, ',rcvbuf=4096'],
  ])(
    'loses nothing to %s, and does not stall',
    async (_, impairment, receiveBuffer) => {
      open({ impairment, offloads: false })
      const data = bytesOf(1 << 18)
      const down = await listen(createServer(socket => socket.end(data)))
      const pull = `socat -u TCP:10.0.2.2:${down}${receiveBuffer} - | sha256sum`
      expect((await wire.run(['sh', '-c', pull], 60_000)).stdout).toContain(digest(data))
      const upload = receiver()
      const sent = await wire.run(['socat', '-u', '-', `TCP:10.0.2.2:${await listen(upload.server)}`], 60_000, data)
      expect(sent.status).toBe(0)
      await wire.turn(() => upload.ended(), 60_000)
      expect(upload.digest()).toBe(digest(data))
      expect(wire.stack.tcp.held).toBe(0)
    },
    120_000,
  )

  it.each<[string, WireOptions]>([
    ['clean', {}],
    ['with loss', { impairment: { seed: 21, loss: 0.02, reorder: 0.05 }, offloads: false }],
  ])(
    'downloads as on a kernel before 6.9, %s',
    async (_, options) => {
      open({ ...options, stack: { kernelOffsets: false } })
      const data = bytesOf(2 << 20)
      const down = await listen(createServer(socket => socket.end(data)))
      const got = await wire.run(['sh', '-c', `socat -u TCP:10.0.2.2:${down} - | sha256sum`], 60_000)
      expect(got.stdout).toContain(digest(data))
    },
    90_000,
  )

  it('keeps one direction open when the other has ended, over IPv6', async () => {
    open()
    const server = createServer({ allowHalfOpen: true }, socket => {
      let heard = ''
      socket.on('data', chunk => {
        heard += chunk
      })
      socket.on('end', () => setTimeout(() => socket.end(`heard ${heard}`), 50))
    })
    const port = await listen(server, '::1')
    const said = await wire.run(
      ['socat', '-t', '5', '-', `TCP6:[fd76:6974:7269::2]:${port}`],
      10_000,
      Buffer.from('words'),
    )
    expect(said).toMatchObject({ status: 0, stdout: 'heard words' })
    await wire.turn(() => wire.stack.tcp.table.all.size === 0, 10_000)
  })

  it('refuses what the host refuses, and what the rules forbid', async () => {
    open()
    const server = createServer()
    const port = await listen(server)
    server.close()
    const refused = await wire.run(['socat', '-u', `TCP:10.0.2.2:${port}`, '-'])
    expect(refused.stderr).toContain('Connection refused')
    const denied = await wire.run(['socat', '-u', 'TCP:192.168.77.1:80', '-'])
    expect(denied.stderr).toContain('Connection refused')
    expect(wire.stack.core.counters.denied).toBe(1)
    expect(wire.stack.denials.latest).toMatchObject([{ protocol: 'tcp', target: '192.168.77.1', port: 80, times: 1 }])
    wire.stack.changePolicy('full')
    expect((await wire.run(['socat', '-u', `TCP:10.0.2.2:${port}`, '-'])).status).not.toBe(0)
    expect(wire.stack.core.counters.denied).toBe(2)
  })

  it('passes resets on', async () => {
    open()
    const port = await listen(createServer(socket => setTimeout(() => socket.resetAndDestroy(), 50)))
    const reset = await wire.run(['bash', '-c', `cat </dev/tcp/10.0.2.2/${port}`])
    expect(reset.stderr).toContain('Connection reset')
    expect(wire.stack.tcp.table.all.size).toBe(0)
  })

  it('stalls a sender whose reader does not read, holds little, and goes on where it was', async () => {
    open()
    const data = bytesOf(24 << 20)
    let paused: Socket | undefined
    const hash = createHash('sha256')
    let ended = false
    const port = await listen(
      createServer(socket => {
        socket.pause()
        paused = socket
      }),
    )
    const sending = wire.run(['socat', '-u', '-', `TCP:10.0.2.2:${port}`], 30_000, data)
    const stalledAt = Date.now() + 1500
    await wire.turn(() => Date.now() > stalledAt)
    expect(wire.stack.tcp.held).toBeLessThanOrEqual(1 << 20)
    const [flow] = wire.stack.tcp.table.all
    expect(flow!.bytesFromGuest).toBeLessThan(data.length)
    paused!.on('data', chunk => hash.update(chunk))
    paused!.resume()
    paused!.on('end', () => {
      ended = true
    })
    await sending
    await wire.turn(() => ended)
    expect(hash.digest('hex')).toBe(digest(data))
    // The other way: the guest does not read, until it does; its window closes and opens again.
    const down = await listen(createServer(socket => socket.end(data)))
    const slow = await wire.run(['sh', '-c', `socat -u TCP:10.0.2.2:${down} - | (sleep 2; sha256sum)`], 30_000)
    expect(slow.stdout).toContain(digest(data))
    expect(wire.stack.core.counters.zeroWindowProbes).toBeGreaterThan(0)
  }, 60_000)

  it('serves curl, 50 connections at once', async () => {
    open()
    const web = createHttpServer((request, response) => response.end(`you asked for ${request.url}`))
    servers.push(web)
    await new Promise<void>(resolve => web.listen(0, '127.0.0.1', resolve))
    const { port } = web.address() as { port: number }
    const urls = `http://10.0.2.2:${port}/[1-50]`
    const fetched = await wire.run(['curl', '-sS', '--no-keepalive', '-Z', '--parallel-max', '50', urls], 30_000)
    expect(fetched.status).toBe(0)
    expect(fetched.stdout.match(/you asked for \/\d+/g)).toHaveLength(50)
    web.closeAllConnections()
  })

  it('leads ports of the host into the guest: TCP, UDP, a Unix socket', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-net-'))
    open({
      description: {
        ports: [
          { host: 0, guest: 7000 },
          { host: 0, guest: 7001, protocol: 'udp' },
        ],
      },
    })
    const [tcp, udp] = wire.stack.ports.open
    const listening = wire.run(['socat', 'TCP-LISTEN:7000,reuseaddr,fork', 'EXEC:tr a-z A-Z'], 20_000).catch(() => {})
    const echoing = wire.run(['socat', 'UDP-RECVFROM:7001,fork', 'EXEC:tr a-z A-Z'], 20_000).catch(() => {})
    const waitFor = "for i in $(seq 50); do [ $(ss -Hlntu | grep -c ':700[01]') = 2 ] && break; sleep 0.1; done"
    await wire.run(['sh', '-c', waitFor])
    const talk = async (to: { port: number; host: string } | { path: string }, words: string): Promise<string> => {
      let said = ''
      let ended = false
      let failed = false
      const socket = connect(to)
      socket.on('data', data => {
        said += data
      })
      socket.on('end', () => {
        ended = true
      })
      socket.on('error', () => {
        failed = true
      })
      socket.end(words)
      await wire.turn(() => ended || failed)
      if (failed) throw new Error('no connection')
      return said
    }
    expect(await talk({ port: tcp!.host, host: '127.0.0.1' }, 'through a port')).toBe('THROUGH A PORT')
    const path = join(folder, 'guest.sock')
    wire.stack.control({ do: 'listen-unix', path, guest: 7000 })
    const long = 'through a unix socket '.repeat(20_000)
    expect(await talk({ path }, long)).toBe(long.toUpperCase())
    const client = createSocket('udp4')
    let answer = ''
    client.on('message', message => {
      answer = message.toString()
    })
    client.send('a datagram', udp!.host, '127.0.0.1')
    await wire.turn(() => answer !== '')
    expect(answer).toBe('A DATAGRAM')
    client.close()
    expect(() => wire.stack.ports.add({ host: tcp!.host, guest: 1 })).toThrow(/is in use/)
    expect(() => wire.stack.ports.add({ host: 65_530, guest: 1, range: 10 })).toThrow(/not possible/)
    expect(wire.stack.control({ do: 'close-port', protocol: 'tcp', host: tcp!.host })).toBe(true)
    await expect(talk({ port: tcp!.host, host: '127.0.0.1' }, 'x').catch(() => 'refused')).resolves.toBe('refused')
    rmSync(folder, { recursive: true })
    // Ends the two servers in the namespace: they are the only ones there.
    await wire.run(['sh', '-c', 'kill $(ss -Hlntup | grep -o "pid=[0-9]*" | cut -d= -f2 | sort -u)'])
    await Promise.all([listening, echoing])
  })

  it('records what tshark reads', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-net-'))
    const pcap = join(folder, 'wire.pcap')
    open({ offloads: false, description: { pcap } })
    const port = await listen(createServer(socket => socket.end('recorded')))
    await wire.run(['socat', '-u', `TCP:10.0.2.2:${port}`, '-'])
    await wire.run(['busybox', 'ping', '-c', '1', '10.0.2.2'])
    wire.stack.recordTo(undefined)
    const check = ['-o', 'tcp.check_checksum:TRUE', '-o', 'ip.check_checksum:TRUE', '-n', '-r', pcap]
    const read = spawnSync('tshark', [...check, '-T', 'fields', '-e', '_ws.col.Protocol', '-e', '_ws.expert.message'], {
      encoding: 'utf8',
    })
    expect(read.stdout).toMatch(/TCP/)
    expect(read.stdout).toMatch(/ICMP/)
    expect(read.stdout).toMatch(/ARP/)
    expect(read.stdout).not.toMatch(/Bad checksum|Malformed/i)
    rmSync(folder, { recursive: true })
  })
})
