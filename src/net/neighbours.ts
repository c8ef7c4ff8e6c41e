/**
 * Named networks: the other boxes that this guest can reach, by name. A network is a folder of the home:
 *
 *   names/<box>      its address in the network, like 10.89.0.3
 *   3.tcp, 3.udp     the entrances (entrance.ts) of the box with that address, while it runs
 *
 * A connection to a neighbour's address becomes one Unix socket between the two VMM processes. The guests keep their own
 * private networks; a neighbour's packets come from its address in the named network. The folder is read when a name is
 * asked for, so boxes come and go without a word to anybody.
 */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { closeFd } from '../host/file.ts'
import { connectUnix, SOCK_SEQPACKET, SOCK_STREAM, writeBytes } from '../host/unix-socket.ts'
import { type Cidr, contains, isIPv4, parseAddress, parseCidr } from './addresses.ts'
import type { NetCore } from './core.ts'
import { INTERNAL_DOMAIN, type NamedNetwork } from './description.ts'
import { Entrance } from './entrance.ts'
import { NetError } from './errors.ts'
import type { Tcp } from './tcp/tcp.ts'
import type { UdpFlows } from './udp.ts'
import { HEADER_BYTES, visitorHeader } from './visitor.ts'

const PREFIX = 24
/** What a box can be called, in lower case: no path can be made of it. */
const NAME = /^[a-z0-9][a-z0-9_.-]{0,62}$/

interface Membership {
  readonly name: string
  readonly folder: string
  readonly own: Uint8Array
  readonly block: Cidr
  readonly entrances: readonly Entrance[]
}

export class Neighbours {
  readonly #members: Membership[] = []

  constructor(core: NetCore, tcp: Tcp, udp: UdpFlows, networks: readonly NamedNetwork[]) {
    try {
      for (const { name, folder, address } of networks) {
        const own = parseAddress(address)
        const block = parseCidr(`${address}/${PREFIX}`)
        const mayComeFrom = (from: Uint8Array): boolean => contains(block, from) && from[15] !== own[15]
        const entrances: Entrance[] = []
        this.#members.push({ name, folder, own, block, entrances })
        for (const protocol of ['tcp', 'udp'] as const) {
          const path = join(folder, `${own[15]}.${protocol}`)
          entrances.push(new Entrance(core, tcp, udp, { path, protocol, mayComeFrom }))
        }
      }
    } catch (error) {
      this.close()
      const { code, message } = error as NodeJS.ErrnoException
      if (code !== 'ENOENT') throw error
      throw new NetError('NO_NETWORK', `the folder of a network is gone: ${message}`, { cause: error })
    }
  }

  /** The address of a neighbour: `name`, `name.network` or `name.vitrine.internal`. */
  resolve(question: string): Uint8Array | undefined {
    if (this.#members.length === 0) return undefined
    const name = question.endsWith(INTERNAL_DOMAIN) ? question.slice(0, -INTERNAL_DOMAIN.length) : question
    for (const member of this.#members) {
      const own = `.${member.name.toLowerCase()}`
      const found =
        this.#read(member, name) ?? (name.endsWith(own) ? this.#read(member, name.slice(0, -own.length)) : undefined)
      if (found !== undefined) return found
    }
    return undefined
  }

  #read(member: Membership, name: string): Uint8Array | undefined {
    if (!NAME.test(name) || name.includes('..')) return undefined
    try {
      const text = readFileSync(join(member.folder, 'names', name), 'utf8').trim()
      const address = isIPv4(text) ? parseAddress(text) : undefined
      return address !== undefined && contains(member.block, address) ? address : undefined
    } catch {
      return undefined
    }
  }

  /** Whether an address belongs to a network that this box is in. */
  covers(address: Uint8Array): boolean {
    return this.#find(address) !== undefined
  }

  #find(address: Uint8Array): Membership | undefined {
    for (const member of this.#members) if (contains(member.block, address)) return member
    return undefined
  }

  /** Whether a box with that address runs now. */
  isThere(address: Uint8Array): boolean {
    const fd = this.#connect(address, SOCK_STREAM, 'tcp')
    if (fd >= 0) closeFd(fd)
    return fd >= 0
  }

  #connect(address: Uint8Array, type: number, protocol: string): number {
    const member = this.#find(address)
    return member === undefined ? -1 : connectUnix(join(member.folder, `${address[15]}.${protocol}`), type)
  }

  /** A socket to a port of that neighbour, or -1. */
  connect(protocol: 'tcp' | 'udp', address: Uint8Array, port: number, guestPort: number): number {
    const own = this.#find(address)?.own
    const fd = this.#connect(address, protocol === 'tcp' ? SOCK_STREAM : SOCK_SEQPACKET, protocol)
    if (fd < 0 || writeBytes(fd, visitorHeader(port, guestPort, own)) === HEADER_BYTES) return fd
    closeFd(fd)
    return -1
  }

  close(): void {
    for (const { entrances } of this.#members) for (const entrance of entrances) entrance.close()
    this.#members.length = 0
  }
}
