/** What can be asked of a network while its guest runs, as plain values: a request comes from another thread or process. */
import { formatAddress } from './addresses.ts'
import type { Bandwidth, NetworkDescription, NetworkPolicy, PortForward } from './description.ts'
import { NetError } from './errors.ts'
import type { NetworkStack } from './stack.ts'
import { STATE_NAMES } from './tcp/flow.ts'

export type Plain = null | boolean | number | string | readonly Plain[] | { readonly [key: string]: Plain }

export type NetworkRequest =
  | { readonly do: 'policy'; readonly policy: NetworkPolicy }
  /** Opens ports; the answer lists them with the host ports that were chosen. */
  | { readonly do: 'open-port'; readonly port: PortForward }
  | { readonly do: 'close-port'; readonly protocol: 'tcp' | 'udp'; readonly host: number }
  | { readonly do: 'ports' }
  /** A Unix socket whose connections lead to a port of the guest. */
  | { readonly do: 'listen-unix'; readonly path: string; readonly guest: number }
  | { readonly do: 'unlisten-unix'; readonly path: string }
  | { readonly do: 'unix-sockets' }
  | { readonly do: 'limit'; readonly bandwidth: Bandwidth }
  /** Starts to record frames in a new file; null ends it. */
  | { readonly do: 'record'; readonly path: string | null }
  | { readonly do: 'recording' }
  /** A restored guest goes by its own hardware address now, no longer by that of the one that was saved. */
  | { readonly do: 'named' }
  | { readonly do: 'flows' }
  | { readonly do: 'counters' }
  | { readonly do: 'denials' }

/** A description that came as plain values; its parts are checked by those who use them. */
export function networkDescriptionOf(value: Plain): NetworkDescription {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new NetError('BAD_DESCRIPTION', 'a network is described by an object, like { policy: "full" }')
  }
  const description = value as { readonly [key: string]: Plain }
  const { mtu, ports, resolvers, hosts, networks } = description
  if (mtu !== undefined && !(typeof mtu === 'number' && Number.isInteger(mtu) && mtu >= 1280 && mtu <= 65_535)) {
    throw new NetError('BAD_DESCRIPTION', `an MTU of ${String(mtu)} is not possible: give one from 1280 to 65535`)
  }
  for (const [name, list] of Object.entries({ ports, resolvers, networks })) {
    if (list !== undefined && !Array.isArray(list))
      throw new NetError('BAD_DESCRIPTION', `a network's ${name} are a list`)
  }
  if (hosts !== undefined && (typeof hosts !== 'object' || hosts === null)) {
    throw new NetError('BAD_DESCRIPTION', "a network's hosts are an object of names and addresses")
  }
  return description as NetworkDescription
}

export function controlStack(stack: NetworkStack, value: Plain): Plain {
  const request = value as NetworkRequest
  switch (request?.do) {
    case 'policy':
      stack.changePolicy(request.policy)
      return null
    case 'open-port':
      return stack.ports.add(request.port).map(port => ({ ...port }))
    case 'close-port':
      return stack.ports.remove(request.protocol, request.host)
    case 'ports':
      return stack.ports.open.map(port => ({ ...port }))
    case 'listen-unix':
      stack.ports.listenUnix(request.path, request.guest)
      return null
    case 'unlisten-unix':
      return stack.ports.unlistenUnix(request.path)
    case 'named':
      stack.guestNamed()
      return null
    case 'flows':
      return flowsOf(stack)
    case 'counters':
      return { ...stack.core.counters }
    case 'denials':
      return stack.denials.latest.map(denial => ({ ...denial }))
    case 'unix-sockets':
      return stack.ports.openUnix
    case 'limit':
      stack.limit(request.bandwidth)
      return null
    case 'record':
      stack.recordTo(request.path ?? undefined)
      return null
    case 'recording': {
      const { path, frames, lost } = stack.recording ?? { path: null, frames: 0, lost: 0 }
      return path === null ? null : { path, frames, lost }
    }
    default:
      throw new NetError('BAD_DESCRIPTION', 'a network does not know this request')
  }
}

/** Every flow with its ends and what went through it. */
export function flowsOf(stack: NetworkStack): Plain[] {
  const common = (flow: {
    readonly guest: Uint8Array
    readonly guestPort: number
    readonly remote: Uint8Array
    readonly remotePort: number
    readonly bytesFromGuest: number
    readonly bytesToGuest: number
    readonly packetsFromGuest: number
    readonly packetsToGuest: number
  }) => ({
    guest: formatAddress(flow.guest),
    guestPort: flow.guestPort,
    remote: formatAddress(flow.remote),
    remotePort: flow.remotePort,
    bytesFromGuest: flow.bytesFromGuest,
    bytesToGuest: flow.bytesToGuest,
    packetsFromGuest: flow.packetsFromGuest,
    packetsToGuest: flow.packetsToGuest,
  })
  const flows: Plain[] = []
  for (const flow of stack.tcp.table.all) {
    const { retransmits, held } = flow
    const own = {
      state: STATE_NAMES[flow.state]!,
      retransmits,
      held: held.length,
      roundTripMs: flow.roundTrip.smoothed,
    }
    flows.push({ protocol: 'tcp', ...common(flow), ...own })
  }
  for (const flow of stack.udp.table.all) flows.push({ protocol: 'udp', ...common(flow) })
  return flows
}
