/** The user-mode network with a real Linux guest, for any accelerator: DHCP, DNS, HTTP both ways, a port, save and restore in a request. */
import { createHash, randomBytes } from 'node:crypto'
import { createServer } from 'node:http'
import { expect, it } from 'vitest'
import type { MachineOptions } from '../../src/machine/machine-options.ts'
import { type GuestOptions, programFiles, TestGuest } from '../virtio/guest.ts'

export function testNetwork(accel: NonNullable<MachineOptions['accel']>, limitMs: number): void {
  it(
    'gets an address, a name, a megabyte down and up, and serves the host through a port',
    async () => {
      const body = randomBytes(1 << 20)
      const uploaded = createHash('sha256')
      let hanging = false
      const server = createServer((request, response) => {
        if (request.url === '/hang') {
          hanging = true
          return undefined
        }
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
      const description = {
        accel,
        devices: [{ kind: 'net', mac: '02:00:00:00:00:01', link: { kind: 'user', options } }],
        files: {
          ...programFiles('/usr/bin/curl'),
          '/lease': { content: new TextEncoder().encode(lease), mode: 0o755 },
        },
        script: `
ip link set lo up; ip link set eth0 up
udhcpc -i eth0 -n -q -f -s /lease && ip -4 -o addr show eth0
mkdir -p /etc; echo 'nameserver 10.0.2.3' > /etc/resolv.conf
ping -c 2 10.0.2.2
curl -sS -o /down http://host.vitrine.internal:${port}/ && echo "DOWN $(sha256sum < /down)"
curl -sS -T /down http://10.0.2.2:${port}/; echo
curl -sS http://10.0.2.2:1/ || echo REFUSED
mkdir /www; echo from the guest > /www/index.html; httpd -p 8000 -h /www; echo SERVING
curl -sS http://10.0.2.2:${port}/hang 2>&1; echo "HANG ENDED $?"
curl -sS -o /down http://host.vitrine.internal:${port}/ && echo "AGAIN $(sha256sum < /down)"
sleep 600`,
      } satisfies GuestOptions
      let guest = await TestGuest.boot(description)
      try {
        await guest.printed(/SERVING/, limitMs)
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
        expect(await card.control({ link: { do: 'counters' } })).toMatchObject({
          malformed: 0,
          badChecksum: 0,
          spoofed: 0,
        })
        expect(guest.reports).toEqual([])
        // Saved in the middle of a request and restored with a network that knows nothing of it: the guest hears so at once.
        for (const end = Date.now() + limitMs; !hanging && Date.now() < end; ) await new Promise(r => setTimeout(r, 50))
        guest = await TestGuest.continue(description, guest.machine)
        await guest.printed(/HANG ENDED 56/, limitMs)
        expect(guest.output).toContain('reset by peer')
        await guest.printed(/AGAIN [0-9a-f]{64}/, limitMs)
        expect(guest.output).toContain(`AGAIN ${createHash('sha256').update(body).digest('hex')}`)
      } finally {
        await guest.close()
        server.close()
        server.closeAllConnections()
      }
    },
    limitMs * 2,
  )
}
