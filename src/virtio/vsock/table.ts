/** All connections of a device by their two ports, and the order in which they get receive buffers. */
import type { Connection } from './connection.ts'

export class ConnectionTable {
  readonly capacity: number
  readonly #byHostPort = new Map<number, Map<number, Connection>>()
  /** In the order of their turns. A set, so that one that goes takes its turn with it, however many wait. */
  readonly #turns = new Set<Connection>()
  #size = 0

  constructor(capacity: number) {
    this.capacity = capacity
  }

  get size(): number {
    return this.#size
  }

  get full(): boolean {
    return this.#size >= this.capacity
  }

  find(hostPort: number, guestPort: number): Connection | undefined {
    return this.#byHostPort.get(hostPort)?.get(guestPort)
  }

  add(connection: Connection): void {
    let ports = this.#byHostPort.get(connection.hostPort)
    if (ports === undefined) {
      ports = new Map()
      this.#byHostPort.set(connection.hostPort, ports)
    }
    ports.set(connection.guestPort, connection)
    this.#size++
  }

  remove(connection: Connection): void {
    const ports = this.#byHostPort.get(connection.hostPort)
    if (ports?.get(connection.guestPort) !== connection) return
    ports.delete(connection.guestPort)
    this.#turns.delete(connection)
    connection.queued = false
    if (ports.size === 0) this.#byHostPort.delete(connection.hostPort)
    this.#size--
  }

  /** All of them, for a reset. */
  all(): Connection[] {
    return [...this.#byHostPort.values()].flatMap(ports => [...ports.values()])
  }

  usesHostPort(hostPort: number): boolean {
    return this.#byHostPort.has(hostPort)
  }

  /** Gives a connection a turn at the receive queue, behind those that wait already. */
  enqueue(connection: Connection): void {
    if (connection.queued) return
    connection.queued = true
    this.#turns.add(connection)
  }

  get hasTurn(): boolean {
    return this.#turns.size > 0
  }

  /** The connection whose turn it is; it has to be enqueued again for another. */
  nextTurn(): Connection | undefined {
    for (const connection of this.#turns) {
      this.#turns.delete(connection)
      connection.queued = false
      return connection
    }
    return undefined
  }

  clear(): void {
    this.#byHostPort.clear()
    this.#turns.clear()
    this.#size = 0
  }
}
