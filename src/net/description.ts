/** A network as a plain value, so that a machine can say what its card's worker is to make; and the addresses in it. */
import { parseAddress } from './addresses.ts'

/** One or many host ports that lead to guest ports. */
export interface PortForward {
  /** 0: any free one; `range` ports from here on. */
  readonly host: number
  readonly guest: number
  /** How many ports in a row; 1 unless told. */
  readonly range?: number
  readonly protocol?: 'tcp' | 'udp'
  /** The host address to listen on; 127.0.0.1 unless told. */
  readonly bind?: string
}

/** Host names (`example.org`, `*.example.org`), addresses, blocks, `*`, or `host.vitrine.internal` for the host itself. */
export interface NetworkRules {
  /** Nothing else is allowed; all that is public when absent. */
  readonly allow?: readonly string[]
  /** Wins over `allow`. */
  readonly deny?: readonly string[]
}

export type NetworkPolicy = 'full' | 'none' | NetworkRules

/** A network that other boxes are in, too: see neighbours.ts. */
export interface NamedNetwork {
  readonly name: string
  /** Where its members meet. */
  readonly folder: string
  /** This guest's address in it. */
  readonly address: string
}

/** Bytes a second; absent: no limit. */
export interface Bandwidth {
  readonly fromGuest?: number
  readonly toGuest?: number
}

export interface NetworkDescription {
  readonly policy?: NetworkPolicy
  readonly ports?: readonly PortForward[]
  /** Names that the DNS server answers itself, with their addresses. */
  readonly hosts?: { readonly [name: string]: string }
  /** DNS servers, instead of the host's. */
  readonly resolvers?: readonly string[]
  /** The card's address; learnt from its first frame when absent. */
  readonly guestMac?: string
  readonly mtu?: number
  /** Records every frame here. */
  readonly pcap?: string
  /** A Unix socket that leads to any port of the guest: entrance.ts. */
  readonly entrance?: string
  readonly networks?: readonly NamedNetwork[]
  readonly bandwidth?: Bandwidth
  /** What the rules forbid is written here, a line each. */
  readonly denialLog?: string
}

export const INTERNAL_DOMAIN = '.vitrine.internal'
export const HOST_NAME = `host${INTERNAL_DOMAIN}`

/**
 * The same private network for every guest, for none of them sees another's:
 *
 *   10.0.2.2   fd76:6974:7269::2    the gateway; as a destination, the host's loopback where that is allowed
 *   10.0.2.3   fd76:6974:7269::3    DNS
 *   10.0.2.15  fd76:6974:7269::15   the guest
 */
export const GUEST_NETWORK = {
  gateway4: '10.0.2.2',
  dns4: '10.0.2.3',
  guest4: '10.0.2.15',
  prefix4: 24,
  gateway6: 'fd76:6974:7269::2',
  dns6: 'fd76:6974:7269::3',
  guest6: 'fd76:6974:7269::15',
  prefix6: 64,
  gatewayMac: '52:55:0a:00:02:02',
} as const

export const GATEWAY4 = parseAddress(GUEST_NETWORK.gateway4)
export const DNS4 = parseAddress(GUEST_NETWORK.dns4)
export const GUEST4 = parseAddress(GUEST_NETWORK.guest4)
export const GATEWAY6 = parseAddress(GUEST_NETWORK.gateway6)
export const DNS6 = parseAddress(GUEST_NETWORK.dns6)
export const GUEST6 = parseAddress(GUEST_NETWORK.guest6)
/** Link-local, made from the gateway's MAC address as any router would (RFC 4291, appendix A). */
export const GATEWAY_LINK_LOCAL = parseAddress('fe80::5055:aff:fe00:202')
