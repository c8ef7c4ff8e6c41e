/**
 * What of a network is saved with its guest. Its sockets cannot be; a restored guest still believes in its connections, and
 * one that only waits for data would wait for ever. So their ends and numbers are kept, and each is reset after a restore. Where
 * the guest had acknowledged less than was sent, it answers the reset with a challenge (RFC 5961), and that with a reset.
 */
import { formatAddress, parseAddress, parseMac } from './addresses.ts'
import type { Plain } from './control.ts'
import type { NetCore } from './core.ts'
import { NetError } from './errors.ts'
import { PROTOCOL_TCP } from './packet.ts'
import * as state from './tcp/flow.ts'
import { ACK, RST, TCP_HEADER } from './tcp/segment.ts'
import type { Tcp } from './tcp/tcp.ts'

const MAX_FLOWS = 4096

interface SavedFlow {
  readonly guest: string
  readonly guestPort: number
  readonly remote: string
  readonly remotePort: number
  /** What the guest expects next of the other end, and the other way round. */
  readonly next: number
  readonly expected: number
}

export interface SavedNetwork {
  readonly mac: string
  readonly flows: readonly SavedFlow[]
}

export function saveNetwork(core: NetCore, tcp: Tcp): Plain {
  const flows: SavedFlow[] = []
  for (const flow of tcp.table.all) {
    if (flow.state < state.ESTABLISHED || flow.state === state.TIME_WAIT) continue
    const { guestPort, remotePort, next, expected } = flow
    const ends = { guest: formatAddress(flow.guest), guestPort, remote: formatAddress(flow.remote), remotePort }
    flows.push({ ...ends, next, expected })
  }
  const mac = [...core.writer.macs.guest].map(byte => byte.toString(16).padStart(2, '0')).join(':')
  return { mac, flows: flows.map(flow => ({ ...flow })) }
}

/** Checks what was read from a file. */
export function savedNetworkOf(value: Plain | undefined): SavedNetwork {
  const { mac, flows } = (value ?? {}) as { readonly mac?: Plain; readonly flows?: Plain }
  const damaged = (): never => {
    throw new NetError('BAD_DESCRIPTION', 'the saved state of a network is damaged: take the snapshot again')
  }
  if (typeof mac !== 'string' || !Array.isArray(flows) || flows.length > MAX_FLOWS) return damaged()
  parseMac(mac)
  const number = (from: Plain | undefined, most: number): number =>
    typeof from === 'number' && Number.isInteger(from) && from >= 0 && from <= most ? from : damaged()
  const address = (from: Plain | undefined): string =>
    typeof from === 'string' ? formatAddress(parseAddress(from)) : damaged()
  return {
    mac,
    flows: (flows as readonly Plain[]).map(flow => {
      const saved = (flow ?? {}) as { readonly [name: string]: Plain }
      return {
        guest: address(saved.guest),
        guestPort: number(saved.guestPort, 65_535),
        remote: address(saved.remote),
        remotePort: number(saved.remotePort, 65_535),
        next: number(saved.next, 0xffff_ffff),
        expected: number(saved.expected, 0xffff_ffff),
      }
    }),
  }
}

/** Queues a reset for each connection, but for those that there are again. */
export function resetAll(core: NetCore, tcp: Tcp, saved: SavedNetwork): void {
  const { writer } = core
  for (const { guest: guestText, guestPort, remote: remoteText, remotePort, next, expected } of saved.flows) {
    const guest = parseAddress(guestText)
    const remote = parseAddress(remoteText)
    if (tcp.table.find(guest, guestPort, remote, remotePort) !== undefined) continue
    const at = writer.begin(remote, guest, PROTOCOL_TCP, TCP_HEADER)
    writer.view.setUint16(at, remotePort)
    writer.view.setUint16(at + 2, guestPort)
    writer.view.setUint32(at + 4, next)
    writer.view.setUint32(at + 8, expected)
    writer.view.setUint32(at + 12, 0x5000_0000 | ((RST | ACK) << 16))
    writer.view.setUint32(at + 16, 0)
    core.counters.tcpResets++
    core.emit(writer.finish(16))
  }
}
