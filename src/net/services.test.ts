/** What the network does beside moving bytes, with the Linux kernel as the guest: DNS over TCP, fragments, limits, neighbours. */
import { createSocket } from 'node:dgram'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { makeAnswer, readQuestion } from './dns/message.ts'
import { Wire, type WireOptions, wireUnavailable } from './testing/wire.ts'
import { visitPort } from './visitor.ts'

const reason = wireUnavailable()
const wires: Wire[] = []
const servers: { close(): unknown }[] = []
const folders: string[] = []

function open(options: WireOptions = {}): Wire {
  const wire = new Wire(options)
  wires.push(wire)
  return wire
}

function folder(): string {
  const path = mkdtempSync(join(tmpdir(), 'vitrine-net-'))
  folders.push(path)
  return path
}

afterEach(() => {
  for (const wire of wires.splice(0)) wire.close()
  for (const server of servers.splice(0)) server.close()
  for (const path of folders.splice(0)) rmSync(path, { recursive: true })
})

async function listen(server: Server, host = '127.0.0.1'): Promise<number> {
  servers.push(server)
  await new Promise<void>(resolve => server.listen(0, host, resolve))
  return (server.address() as { port: number }).port
}

/** A resolver on loopback whose answers of 200 addresses are cut over UDP; how often it was asked each way. */
async function cuttingResolver(): Promise<{ port: number; asked: { udp: number; tcp: number } }> {
  const asked = { udp: 0, tcp: 0 }
  const addresses = Array.from({ length: 200 }, (_, i) => Uint8Array.from([192, 0, 2, i]))
  const tcp = createServer(socket => {
    socket.on('data', data => {
      asked.tcp++
      const query = data.subarray(2)
      const answer = makeAnswer(query, readQuestion(query)!, 0, addresses)
      const length = Buffer.alloc(2)
      length.writeUInt16BE(answer.length)
      // In pieces, as a network would deliver it.
      socket.write(length.subarray(0, 1))
      setTimeout(() => socket.write(Buffer.concat([length.subarray(1), answer.subarray(0, 900)])), 5)
      setTimeout(() => socket.write(answer.subarray(900)), 10)
    })
    socket.on('error', () => {})
  })
  const port = await listen(tcp)
  const udp = createSocket('udp4')
  udp.on('message', (query, from) => {
    asked.udp++
    const answer = makeAnswer(query, readQuestion(query)!, 0, [])
    answer[2]! |= 2
    udp.send(answer, from.port, from.address)
  })
  await new Promise<void>(resolve => udp.bind(port, '127.0.0.1', resolve))
  servers.push(udp)
  return { port, asked }
}

describe.skipIf(reason)(`the services of the network${reason ? `: ${reason}` : ''}`, () => {
  it('asks over TCP for what was cut, keeps it, and answers over TCP itself', async () => {
    const { port, asked } = await cuttingResolver()
    const wire = open({ description: { resolvers: ['127.0.0.1'] }, stack: { resolverPort: port } })
    const dig = async (...args: string[]): Promise<string> =>
      (await wire.run(['dig', '@10.0.2.3', '+tries=1', '+short', ...args])).stdout
    // dig says by itself that it takes 1232 bytes, is told that the answer is longer, and asks again over TCP.
    const lines = (await dig('long.example')).trim().split('\n')
    expect(lines.filter(line => line.startsWith('192.0.2.'))).toHaveLength(200)
    expect(asked).toEqual({ udp: 1, tcp: 1 })
    // In one datagram, when the guest says that it takes that.
    expect((await dig('+bufsize=4096', '+ignore', 'long.example')).trim().split('\n')).toHaveLength(200)
    expect((await dig('+tcp', 'host.vitrine.internal')).trim()).toBe('10.0.2.2')
    expect((await dig('+tcp', '-6', '@fd76:6974:7269::3', 'long.example')).trim().split('\n').length).toBeGreaterThan(
      199,
    )
    expect(asked).toEqual({ udp: 1, tcp: 1 })
    expect(wire.stack.core.counters).toMatchObject({ dnsRetriedOverTcp: 1, dnsOverTcp: 3, malformed: 0 })
    wire.stack.changePolicy({ deny: ['long.example'] })
    const refused = await wire.run(['dig', '@10.0.2.3', '+tcp', '+tries=1', 'long.example'])
    expect(refused.stdout).toContain('REFUSED')
    expect(wire.stack.denials.latest).toMatchObject([{ protocol: 'dns', target: 'long.example' }])
  })

  it('puts fragments together, of both versions', async () => {
    const wire = open()
    const four = await wire.run(['busybox', 'ping', '-c', '2', '-s', '20000', '10.0.2.2'])
    expect(four.stdout).toContain('2 packets received')
    const six = await wire.run(['busybox', 'ping6', '-c', '2', '-s', '5000', 'fd76:6974:7269::2'])
    expect(six.stdout).toContain('2 packets received')
    const echo = createSocket('udp4')
    echo.on('message', (message, from) => echo.send(message, from.port, from.address))
    await new Promise<void>(resolve => echo.bind(0, '127.0.0.1', resolve))
    servers.push(echo)
    const sent = 'x'.repeat(8000)
    const to = `UDP4:10.0.2.2:${echo.address().port}`
    const heard = await wire.run(['socat', '-b', '9000', '-t', '0.5', '-', to], 5000, Buffer.from(sent))
    expect(heard.stdout).toBe(sent)
    expect(wire.stack.core.counters).toMatchObject({
      reassembled: 5,
      fragmentsDropped: 0,
      malformed: 0,
      badChecksum: 0,
    })
    expect(wire.stack.reassembly.waiting).toBe(0)
  })

  it('limits both directions, and loses nothing by it', async () => {
    const wire = open({ description: { bandwidth: { fromGuest: 4e6, toGuest: 4e6 } } })
    const body = 'y'.repeat(1_000_000)
    let received = 0
    const port = await listen(
      createServer({ allowHalfOpen: true }, socket => {
        socket.on('data', data => {
          received += data.length
        })
        socket.on('end', () => socket.end(body))
      }),
    )
    const got = await wire.run(['socat', '-t', '5', '-', `TCP:10.0.2.2:${port}`], 15_000, Buffer.from(body))
    expect(got.stdout).toBe(body)
    expect(received).toBe(body.length)
    expect(wire.stack.core.counters).toMatchObject({ retransmits: 0, queueFull: 0 })
    expect(wire.stack.core.counters.limited).toBeGreaterThan(2)
  })

  it('lets visitors in by a Unix socket, and says when nobody is at home', async () => {
    const path = join(folder(), 'net.sock')
    const wire = open({ description: { entrance: path } })
    const serving = wire.run(['socat', 'TCP-LISTEN:7000,reuseaddr', 'EXEC:cat'])
    let stream: Awaited<ReturnType<typeof visitPort>> | undefined
    for (let tries = 0; tries < 50 && stream === undefined; tries++) {
      stream = await visitPort(path, 7000, 5000).catch(() => undefined)
    }
    stream!.end('to the guest and back')
    let heard = ''
    for await (const chunk of stream!) heard += String(chunk)
    expect(heard).toBe('to the guest and back')
    expect((await serving).status).toBe(0)
    const refused = expect(visitPort(path, 7001, 5000)).rejects.toMatchObject({ code: 'REFUSED' })
    await wire.run(['sleep', '0.2'])
    await refused
    expect(wire.stack.tcp.table.all.size).toBeLessThan(2)
  })

  it('lets two guests of a named network meet by name: TCP, UDP, ping; and nobody else', async () => {
    const network = folder()
    mkdirSync(join(network, 'names'))
    writeFileSync(join(network, 'names', 'one'), '10.89.7.2\n')
    writeFileSync(join(network, 'names', 'two'), '10.89.7.3\n')
    const member = (address: string) => ({
      description: { policy: 'none' as const, networks: [{ name: 'dev', folder: network, address }] },
    })
    const one = open(member('10.89.7.2'))
    const two = open(member('10.89.7.3'))
    const names = await one.run(['dig', '@10.0.2.3', '+short', 'two', 'two.dev', 'TWO.vitrine.internal', 'three', 'A'])
    expect(names.stdout.trim().split('\n')).toEqual(['10.89.7.3', '10.89.7.3', '10.89.7.3'])
    // The guest of `two` sees who comes.
    const serving = two.run(['socat', 'TCP-LISTEN:7000', 'SYSTEM:echo $SOCAT_PEERADDR; cat'], 10_000)
    await two.run(['sh', '-c', 'until ss -Hlnt | grep -q :7000; do sleep 0.05; done'])
    const client = await one.run(['socat', '-t', '2', '-', 'TCP:10.89.7.3:7000'], 10_000, Buffer.from('hello'))
    expect(client.stdout).toBe('10.89.7.2\nhello')
    expect((await serving).status).toBe(0)
    const echoing = two.run(['timeout', '3', 'socat', 'UDP-LISTEN:7001', 'EXEC:cat'], 10_000)
    await two.run(['sh', '-c', 'until ss -Hlnu | grep -q :7001; do sleep 0.05; done'])
    const datagram = await one.run(['socat', '-t', '1', '-', 'UDP:10.89.7.3:7001'], 10_000, Buffer.from('datagram'))
    expect(datagram.stdout).toBe('datagram')
    await echoing
    const pinged = await one.run(['busybox', 'ping', '-c', '1', '10.89.7.3'])
    expect(pinged.stdout).toContain('1 packets received')
    const refusing = one.run(['socat', '-u', 'TCP:10.89.7.3:9', '-'])
    const both = await Promise.all([refusing, two.run(['sleep', '0.3'])])
    expect(both[0].stderr).toContain('Connection refused')
    const absent = await one.run(['socat', '-u', 'TCP:10.89.7.9:80', '-'])
    expect(absent.stderr).toContain('Connection refused')
    two.stack.changePolicy({ allow: [], deny: ['10.89.7.2'] })
    expect((await two.run(['socat', '-u', 'TCP:10.89.7.2:80', '-'])).stderr).toContain('Connection refused')
    expect(two.stack.denials.latest).toMatchObject([{ protocol: 'tcp', target: '10.89.7.2', port: 80 }])
  })
})
