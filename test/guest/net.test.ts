/** The user-mode network with a real Linux guest on the software CPU: DHCP, DNS, HTTP both ways, with the card's offloads. */
import { createHash, randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import { expect, it } from 'vitest'
import { programFiles, TestGuest } from '../virtio/guest.ts'

const LIMIT_MS = 150_000

it('gets an address, a name, a megabyte down and up, and serves the host through a port', async () => {
  const body = randomBytes(1 << 20)
  const uploaded = createHash('sha256')
  const server = createServer((request, response) => {
    if (request.method === 'GET') return response.end(body)
    request.on('data', data => uploaded.update(data))
    request.on('end', () => response.end('thanks'))
    return undefined
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  const lease =
    '#!/bin/sh\n[ "$1" = bound ] && ip addr add $ip/$mask dev $interface && ip route add default via $router'
  const options = { policy: { allow: ['host.vitrine.internal'] }, ports: [{ host: 0, guest: 8000 }] }
  const guest = await TestGuest.boot({
    accel: 'soft',
    devices: [{ kind: 'net', mac: '02:00:00:00:00:01', link: { kind: 'user', options } }],
    files: { ...programFiles('/usr/bin/curl'), '/lease': { content: new TextEncoder().encode(lease), mode: 0o755 } },
    script: `
ip link set lo up; ip link set eth0 up
udhcpc -i eth0 -n -q -f -s /lease && ip -4 -o addr show eth0
mkdir -p /etc; echo 'nameserver 10.0.2.3' > /etc/resolv.conf
ping -c 2 10.0.2.2
curl -sS -o /down http://host.vitrine.internal:${port}/ && echo "DOWN $(sha256sum < /down)"
curl -sS -T /down http://10.0.2.2:${port}/; echo
curl -sS http://10.0.2.2:1/ || echo REFUSED
mkdir /www; echo from the guest > /www/index.html; httpd -p 8000 -h /www; echo SERVING
sleep 600`,
  })
  try {
    await guest.printed(/SERVING/, LIMIT_MS)
    expect(guest.output).toContain('inet 10.0.2.15/24')
    expect(guest.output).toContain('2 packets received')
    expect(guest.output).toContain(`DOWN ${createHash('sha256').update(body).digest('hex')}`)
    expect(guest.output).toContain('thanks')
    expect(uploaded.digest('hex')).toBe(createHash('sha256').update(body).digest('hex'))
    expect(guest.output).toContain('REFUSED')
    const card = guest.device('net')
    const [open] = (await card.control({ link: { do: 'ports' } })) as [{ host: number }]
    const reply = await fetch(`http://127.0.0.1:${open.host}/`)
    expect(await reply.text()).toBe('from the guest\n')
    expect(await card.control({ link: { do: 'counters' } })).toMatchObject({ malformed: 0, badChecksum: 0, spoofed: 0 })
    expect(guest.reports).toEqual([])
  } finally {
    await guest.close()
    server.close()
    server.closeAllConnections()
  }
}, 200_000)
