/** Where the guest's packets go: the host's loopback, our own servers, a neighbour, the world, or nowhere. */
import { contains, isMapped, parseAddress, parseCidr, sameAddress } from './addresses.ts'
import { DNS4, DNS6, GATEWAY4, GATEWAY6, GUEST_NETWORK } from './description.ts'
import type { Neighbours } from './neighbours.ts'
import type { Policy } from './policy.ts'

const LOOPBACK4 = parseAddress('127.0.0.1')
const LOOPBACK6 = parseAddress('::1')
export const GUEST_PREFIX6 = parseCidr(`${GUEST_NETWORK.guest6}/${GUEST_NETWORK.prefix6}`)
const GUEST_NET4 = parseCidr(`${GUEST_NETWORK.guest4}/${GUEST_NETWORK.prefix4}`)

export type Destination =
  | { readonly kind: 'host'; readonly address: Uint8Array }
  | { readonly kind: 'dns' | 'neighbour' | 'denied' }

const DNS: Destination = { kind: 'dns' }
const NEIGHBOUR: Destination = { kind: 'neighbour' }
const DENIED: Destination = { kind: 'denied' }

export const isDnsServer = (address: Uint8Array): boolean =>
  isMapped(address) ? sameAddress(address, DNS4) : sameAddress(address, DNS6)

export function destinationOf(policy: Policy, neighbours: Neighbours, remote: Uint8Array): Destination {
  if (sameAddress(remote, GATEWAY4)) return policy.host ? { kind: 'host', address: LOOPBACK4 } : DENIED
  if (sameAddress(remote, GATEWAY6)) return policy.host ? { kind: 'host', address: LOOPBACK6 } : DENIED
  if (isDnsServer(remote)) return DNS
  if (contains(GUEST_NET4, remote) || contains(GUEST_PREFIX6, remote)) return DENIED
  // Whoever is in a network may reach the others in it, unless a rule names them.
  if (neighbours.covers(remote)) return policy.denies(remote) ? DENIED : NEIGHBOUR
  return policy.mayConnect(remote) ? { kind: 'host', address: remote } : DENIED
}
