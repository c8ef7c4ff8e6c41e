/** The network of a running box: ports, rules, limits, and what goes on in it. Changes last until the box stops. */
import { resolve } from 'node:path'
import type { Duplex } from 'node:stream'
import type { NetworkRequest } from '../net/control.ts'
import type { Denial } from '../net/denials.ts'
import type { Bandwidth } from '../net/description.ts'
import { NetError } from '../net/errors.ts'
import { visitPort } from '../net/visitor.ts'
import { BoxError } from './errors.ts'
import type { NetworkPolicy, PortMapping } from './record.ts'
import type { OpenPort } from './vmm/launch.ts'

/** A Unix socket on the host that leads to a TCP port of the guest. */
export interface UnixPort {
  readonly path: string
  readonly guest: number
}

/** A connection or an exchange of datagrams between the guest and somebody. */
export interface NetworkFlow {
  readonly protocol: 'tcp' | 'udp'
  /** The guest's end, and the other one. */
  readonly guest: string
  readonly guestPort: number
  readonly remote: string
  readonly remotePort: number
  readonly bytesFromGuest: number
  readonly bytesToGuest: number
  readonly packetsFromGuest: number
  readonly packetsToGuest: number
  /** Of TCP only. */
  readonly state?: string
  readonly retransmits?: number
  /** Bytes of the guest that the host's end has not taken yet. */
  readonly held?: number
  readonly roundTripMs?: number
}

const CONNECT_MS = 30_000

/** The network of a running box: looked at, and changed until the box stops. */
export class BoxNetwork {
  readonly #call: <Result>(request: NetworkRequest) => Promise<Result>
  readonly #entrance: string

  constructor(call: <Result>(request: NetworkRequest) => Promise<Result>, entrance: string) {
    this.#call = call
    this.#entrance = entrance
  }

  /** The host ports that lead into the box, with the numbers that were chosen for them. */
  ports(): Promise<readonly OpenPort[]> {
    return this.#call({ do: 'ports' })
  }

  /** Opens a port, or a range; all of it or nothing. What was opened, with the numbers that were chosen. */
  openPort(port: PortMapping): Promise<readonly OpenPort[]> {
    return this.#call({ do: 'open-port', port })
  }

  /** Closes a host port; connections through it go on. */
  async closePort(host: number, protocol: 'tcp' | 'udp' = 'tcp'): Promise<void> {
    if (await this.#call<boolean>({ do: 'close-port', protocol, host })) return
    throw new BoxError(
      'INVALID',
      `${protocol} port ${host} does not lead into this box: 'vitrine port ls' shows which do`,
    )
  }

  /** Unix sockets of the host whose connections lead to a port of the guest. */
  unixPorts(): Promise<readonly UnixPort[]> {
    return this.#call({ do: 'unix-sockets' })
  }

  async openUnixPort(path: string, guest: number): Promise<void> {
    await this.#call({ do: 'listen-unix', path: resolve(path), guest })
  }

  async closeUnixPort(path: string): Promise<void> {
    if (await this.#call<boolean>({ do: 'unlisten-unix', path: resolve(path) })) return
    throw new BoxError('INVALID', `the Unix socket ${path} does not lead into this box`)
  }

  /** A stream to a TCP port of the guest, without any host port. */
  async connect(port: number, options: { timeoutMs?: number } = {}): Promise<Duplex> {
    if (!Number.isInteger(port) || port < 1 || port > 65_535) {
      throw new BoxError('BAD_PORT', `the guest has no port ${port}: give one from 1 to 65535`)
    }
    // Says what is wrong when the box does not run, or has no network.
    await this.ports()
    try {
      return await visitPort(this.#entrance, port, options.timeoutMs ?? CONNECT_MS)
    } catch (error) {
      if (!(error instanceof NetError)) throw error
      throw new BoxError(error.code, error.message, { cause: error })
    }
  }

  /** New rules, for new connections and questions. */
  async setPolicy(policy: NetworkPolicy): Promise<void> {
    await this.#call({ do: 'policy', policy })
  }

  /** Bytes a second in each direction; no limit where nothing is said. */
  async setBandwidth(bandwidth: Bandwidth): Promise<void> {
    await this.#call({ do: 'limit', bandwidth })
  }

  /** What is open now. */
  flows(): Promise<readonly NetworkFlow[]> {
    return this.#call({ do: 'flows' })
  }

  /** Everything that the network counts: bytes, packets, connections, retransmits, drops, denials. */
  counters(): Promise<Readonly<Record<string, number>>> {
    return this.#call({ do: 'counters' })
  }

  /** What the rules forbade lately, the latest last. */
  denials(): Promise<readonly Denial[]> {
    return this.#call({ do: 'denials' })
  }

  /** Records all that the guest sends and receives, for tshark and its kind; undefined ends it. */
  async record(path: string | undefined): Promise<void> {
    await this.#call({ do: 'record', path: path === undefined ? null : resolve(path) })
  }
}
