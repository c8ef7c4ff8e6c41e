/**
 * virtio-vsock: VIRTIO 1.2, section 5.10. Streams between the guest's ports and Unix sockets of the host, in both
 * directions. Bytes go from guest buffers to sockets and back without a copy; what a socket has no room for is kept up to
 * the credit that the guest was given, and what the guest has no room for stays in the socket.
 */
import { closeFd } from '../../host/file.ts'
import { IoVector } from '../../host/io-vector.ts'
import { POLLERR, POLLHUP, POLLIN, POLLOUT } from '../../host/poll.ts'
import {
  BROKEN,
  connectUnix,
  readVector,
  shutdownRead,
  shutdownWrite,
  WOULD_BLOCK,
  writeBytes,
  writeVector,
} from '../../host/unix-socket.ts'
import { type DeviceLink, type SavedValue, TYPE_VSOCK, type VirtioDevice } from '../device.ts'
import { GuestFault } from '../errors.ts'
import type { Virtqueue } from '../queue/virtqueue.ts'
import {
  BUFFER_BYTES,
  CONNECT_TIMEOUT_MS,
  EVENT_QUEUE,
  FIRST_HOST_PORT,
  MAX_BUFFERED_BYTES,
  MAX_CONNECTIONS,
  RX_QUEUE,
  TX_QUEUE,
  VSOCK_QUEUE_SIZE,
  type VsockOptions,
  vsockConfig,
} from './config.ts'
import { Connection } from './connection.ts'
import { Deadlines } from './deadlines.ts'
import { ConnectListener } from './listener.ts'
import * as metric from './metrics.ts'
import * as packet from './packet.ts'
import { ReplyQueue } from './replies.ts'
import { RxBatch } from './rx-batch.ts'
import { restoreVsock, saveVsock } from './state.ts'
import { ConnectionTable } from './table.ts'

/** Packets a turn, before the worker's other devices have theirs. */
const FAIR_SHARE = 128
const BOTH = packet.NO_RECEIVE | packet.NO_SEND

export class VsockDevice implements VirtioDevice {
  readonly type = TYPE_VSOCK
  readonly features: readonly number[] = []
  readonly queueSizes: readonly number[] = [VSOCK_QUEUE_SIZE, VSOCK_QUEUE_SIZE, 16]
  readonly config: Uint8Array
  readonly counterNames = metric.VSOCK_COUNTERS
  readonly #cid: number
  readonly #path: string
  readonly #table: ConnectionTable
  readonly #replies = new ReplyQueue()
  /** The guest is done with these; their sockets still have to take what it sent. */
  readonly #draining = new Set<Connection>()
  readonly #listener: ConnectListener
  /** Connections that the guest has not answered yet. */
  readonly #asked: Deadlines<Connection>
  readonly #header = new packet.PacketHeader()
  readonly #out = new packet.PacketHeader()
  #link!: DeviceLink
  #readable!: IoVector
  #writable!: IoVector
  #data!: IoVector
  #batch!: RxBatch
  #queues: readonly Virtqueue[] = []
  #nextPort = FIRST_HOST_PORT
  #backlogs = 0
  #eventPending = false
  /** The guest's packets wait because `#replies` is full. */
  #txWaits = false

  /** Listens at `options.path` at once; connections are accepted when the guest has a driver. */
  constructor(options: VsockOptions) {
    this.config = vsockConfig(options.cid)
    this.#cid = options.cid
    this.#path = options.path
    this.#table = new ConnectionTable(options.maxConnections ?? MAX_CONNECTIONS)
    const timeoutMs = options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS
    this.#asked = new Deadlines(timeoutMs, connection => this.#unanswered(connection))
    this.#listener = new ConnectListener(options.path, timeoutMs, {
      hasRoom: () => this.#hasRoom(),
      connect: (fd, guestPort) => this.#connectToGuest(fd, guestPort),
      fail: error => this.#link.fail(error),
    })
  }

  attach(link: DeviceLink): void {
    this.#link = link
    const { bytes } = link.memory
    this.#readable = new IoVector(bytes)
    this.#writable = new IoVector(bytes)
    this.#data = new IoVector(bytes)
    this.#batch = new RxBatch(bytes)
  }

  activate(queues: readonly Virtqueue[]): void {
    this.#queues = queues
    this.#asked.start(this.#link.poll)
    this.#listener.start(this.#link.poll)
  }

  reset(): void {
    this.#queues = []
    for (const connection of this.#table.all()) this.#close(connection)
    for (const connection of this.#draining) this.#close(connection)
    this.#listener.stop()
    this.#asked.stop()
    this.#table.clear()
    this.#draining.clear()
    this.#replies.clear()
    this.#txWaits = false
    this.#eventPending = false
    this.#link.counters[metric.CONNECTIONS] = 0
  }

  notified(index: number): boolean {
    if (this.#queues.length === 0) return false
    if (index === TX_QUEUE) return this.#serveTx()
    if (index === RX_QUEUE) this.#pump()
    else this.#sendEvent()
    return false
  }

  // Guest to host.

  #serveTx(): boolean {
    const queue = this.#queues[TX_QUEUE]!
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0 && !this.#replies.full; share--) {
        this.#readable.clear()
        this.#writable.clear()
        const head = queue.pop(this.#readable, this.#writable)
        if (head < 0) break
        this.#handlePacket()
        queue.push(head, 0)
      }
      this.#link.publish(queue)
      this.#pump()
      this.#txWaits = this.#replies.full
      if (this.#txWaits) return false
      if (share === 0) return true
    } while (queue.rearm())
    return false
  }

  #handlePacket(): void {
    const header = this.#header
    const { counters } = this.#link
    if (this.#readable.byteLength < packet.HEADER_SIZE || this.#writable.count !== 0) {
      throw new GuestFault('request-shape', 'a vsock packet without its header')
    }
    header.load(this.#readable)
    counters[metric.PACKETS_TO_HOST]! += 1
    // Packets that are not from this guest are none of ours (5.10.6.2); answering them would be talking to ourselves.
    if (header.srcCid !== this.#cid || header.dstCid !== packet.HOST_CID) {
      counters[metric.BAD_PACKETS]! += 1
      return
    }
    const connection = this.#table.find(header.dstPort, header.srcPort)
    if (header.type !== packet.TYPE_STREAM || header.length > this.#readable.byteLength - packet.HEADER_SIZE) {
      counters[metric.BAD_PACKETS]! += 1
      if (connection !== undefined) this.#resetConnection(connection)
      else if (header.op !== packet.OP_RST) this.#refuse(header.type)
      return
    }
    connection?.noteGuestCredit(header.bufAlloc, header.fwdCnt)
    if (header.op === packet.OP_REQUEST) this.#requested(connection)
    else if (connection === undefined) {
      if (header.op !== packet.OP_RST) this.#refuse(packet.TYPE_STREAM)
    } else this.#handleFor(connection)
  }

  #handleFor(connection: Connection): void {
    const { op } = this.#header
    if (op === packet.OP_RST) {
      this.#letGo(connection)
      return
    }
    if (op === packet.OP_RESPONSE) this.#responded(connection)
    else if (connection.state === 'asked') this.#resetConnection(connection)
    else if (op === packet.OP_RW) this.#receive(connection)
    else if (op === packet.OP_SHUTDOWN) {
      connection.guestShutdown |= this.#header.flags & BOTH
      this.#settle(connection)
    } else if (op === packet.OP_CREDIT_REQUEST) connection.owesCredit = true
    else if (op !== packet.OP_CREDIT_UPDATE) {
      this.#link.counters[metric.BAD_PACKETS]! += 1
      this.#resetConnection(connection)
    }
    if (connection.owesControl || connection.readable) this.#table.enqueue(connection)
  }

  /** The guest wants to connect to a port of the host. */
  #requested(existing: Connection | undefined): void {
    const { dstPort, srcPort, bufAlloc, fwdCnt } = this.#header
    if (existing !== undefined) {
      this.#resetConnection(existing)
      return
    }
    const fd = this.#hasRoom() ? connectUnix(`${this.#path}_${dstPort}`) : -1
    if (fd < 0) {
      this.#link.counters[metric.REFUSED]! += 1
      this.#refuse(packet.TYPE_STREAM)
      return
    }
    const connection = this.#open(new Connection(fd, dstPort, srcPort, 'open'))
    connection.noteGuestCredit(bufAlloc, fwdCnt)
    connection.owesResponse = true
    this.#table.enqueue(connection)
  }

  /** The guest accepted a connection of ours. */
  #responded(connection: Connection): void {
    if (connection.state !== 'asked' || connection.owesRequest) {
      this.#resetConnection(connection)
      return
    }
    connection.state = 'open'
    this.#asked.finish(connection)
    writeBytes(connection.fd, new TextEncoder().encode(`OK ${connection.hostPort}\n`))
    this.#updatePoll(connection)
  }

  #receive(connection: Connection): void {
    const { length } = this.#header
    if (length === 0) return
    this.#link.counters[metric.BYTES_TO_HOST]! += length
    if (!connection.noteReceived(length)) {
      this.#link.counters[metric.BAD_PACKETS]! += 1
      this.#resetConnection(connection)
      return
    }
    this.#data.setToRangeOf(this.#readable, packet.HEADER_SIZE, length)
    let written = length
    // Nobody is there to read it: as good as read.
    if (connection.state !== 'ended' && !connection.hungUp) {
      written = connection.backlogLength > 0 ? 0 : writeVector(connection.fd, this.#data)
      if (written === WOULD_BLOCK) written = 0
      else if (written === BROKEN) {
        written = length
        if ((connection.saidShutdown & packet.NO_RECEIVE) === 0) connection.owesShutdown |= packet.NO_RECEIVE
      }
    }
    connection.noteForwarded(written)
    if (written < length) this.#keep(connection, written)
  }

  /** Keeps what the socket had no room for. */
  #keep(connection: Connection, skip: number): void {
    const { offsets, lengths, count, memory } = this.#data
    if (connection.backlog === undefined) {
      if ((this.#backlogs + 1) * BUFFER_BYTES > MAX_BUFFERED_BYTES) {
        this.#resetConnection(connection)
        return
      }
      this.#backlogs++
    }
    let left = skip
    for (let i = 0; i < count; i++) {
      const skipped = Math.min(left, lengths[i]!)
      left -= skipped
      if (skipped < lengths[i]!)
        connection.pushBacklog(memory.subarray(offsets[i]! + skipped, offsets[i]! + lengths[i]!))
    }
    this.#link.counters[metric.BUFFERED_BYTES] = this.#backlogs * BUFFER_BYTES
    this.#updatePoll(connection)
  }

  #flushBacklog(connection: Connection): void {
    while (connection.backlogLength > 0) {
      let written = writeBytes(connection.fd, connection.backlogRun())
      if (written === WOULD_BLOCK) return
      if (written === BROKEN) written = connection.backlogLength
      connection.noteForwarded(written)
      connection.popBacklog(written)
    }
    this.#backlogs--
    this.#link.counters[metric.BUFFERED_BYTES] = this.#backlogs * BUFFER_BYTES
  }

  // Host to guest.

  /** Fills receive buffers with what is owed to the guest. */
  #pump(): void {
    const queue = this.#queues[RX_QUEUE]!
    let share = FAIR_SHARE
    queue.quiet()
    do {
      for (; share > 0 && queue.hasAvailable; share--) {
        const reply = this.#replies.pop(this.#out, this.#cid)
        if (reply) {
          this.#sendPacket(queue, packet.OP_RST, 0, 0, 0)
          continue
        }
        const connection = this.#table.nextTurn()
        if (connection === undefined) break
        this.#serve(queue, connection)
      }
      this.#link.publish(queue)
      if (share === 0) {
        this.#link.ring(RX_QUEUE)
        return
      }
    } while (queue.rearm() && (this.#table.hasTurn || !this.#replies.empty))
    if (this.#txWaits && !this.#replies.full) {
      this.#txWaits = false
      this.#link.ring(TX_QUEUE)
    }
  }

  /** One control packet, or one batch of data. */
  #serve(queue: Virtqueue, connection: Connection): void {
    if (connection.gone) return
    this.#out.address(this.#cid, connection.hostPort, connection.guestPort)
    if (connection.owesReset) {
      this.#sendControl(queue, connection, packet.OP_RST)
      this.#drop(connection)
      return
    }
    if (connection.owesRequest) {
      connection.owesRequest = false
      this.#sendControl(queue, connection, packet.OP_REQUEST)
    } else if (connection.owesResponse) {
      connection.owesResponse = false
      this.#sendControl(queue, connection, packet.OP_RESPONSE)
      this.#updatePoll(connection)
    } else if (connection.owesShutdown !== 0) {
      const flags = connection.owesShutdown
      connection.owesShutdown = 0
      connection.saidShutdown |= flags
      this.#sendControl(queue, connection, packet.OP_SHUTDOWN, connection.saidShutdown)
      this.#settle(connection)
    } else if (connection.owesCredit) this.#sendControl(queue, connection, packet.OP_CREDIT_UPDATE)
    else if (connection.readable && connection.state === 'open') this.#transfer(queue, connection)
    const canTransfer = connection.readable && connection.state === 'open' && connection.sendCredit > 0
    if (connection.owesControl || canTransfer) this.#table.enqueue(connection)
  }

  #sendControl(queue: Virtqueue, connection: Connection, op: number, flags = 0): void {
    this.#sendPacket(queue, op, flags, BUFFER_BYTES, connection.advertise())
  }

  #sendPacket(queue: Virtqueue, op: number, flags: number, bufAlloc: number, fwdCnt: number): void {
    this.#readable.clear()
    this.#writable.clear()
    const head = queue.pop(this.#readable, this.#writable)
    if (this.#readable.count !== 0 || this.#writable.byteLength < packet.HEADER_SIZE) {
      throw new GuestFault('request-shape', 'a vsock receive buffer without room for a header')
    }
    this.#out.fill(op, 0, flags, bufAlloc, fwdCnt)
    this.#out.store(this.#writable)
    queue.pushWritten(head, this.#writable, packet.HEADER_SIZE)
    this.#link.counters[metric.PACKETS_TO_GUEST]! += 1
  }

  /** From the socket straight into as many receive buffers as one call fills. */
  #transfer(queue: Virtqueue, connection: Connection): void {
    const credit = connection.sendCredit
    if (credit === 0) return
    const batch = this.#batch
    batch.take(queue, credit)
    const bytes = readVector(connection.fd, batch.data)
    if (bytes <= 0) {
      batch.giveBack(queue)
      connection.readable = false
      if (bytes !== WOULD_BLOCK) {
        connection.owesShutdown |= connection.hungUp || bytes === BROKEN ? BOTH : packet.NO_SEND
      }
    } else {
      const packets = batch.finish(queue, this.#out, bytes, connection.advertise())
      connection.noteSent(bytes)
      // Less than there was room for: the socket is empty. (One that hung up is read until it says so.)
      if (bytes < batch.data.byteLength && !connection.hungUp) connection.readable = false
      this.#link.counters[metric.PACKETS_TO_GUEST]! += packets
      this.#link.counters[metric.BYTES_TO_GUEST]! += bytes
    }
    this.#updatePoll(connection)
  }

  #sendEvent(): void {
    const queue = this.#queues[EVENT_QUEUE]
    if (!this.#eventPending || queue === undefined || !queue.hasAvailable) return
    this.#readable.clear()
    this.#writable.clear()
    const head = queue.pop(this.#readable, this.#writable)
    if (this.#writable.byteLength < 4) throw new GuestFault('request-shape', 'a vsock event buffer without room')
    // VIRTIO_VSOCK_EVENT_TRANSPORT_RESET is 0.
    this.#writable.fill(0, 0, 4)
    queue.pushWritten(head, this.#writable, 4)
    this.#eventPending = false
    this.#link.publish(queue)
  }

  // Connections.

  #hasRoom(): boolean {
    if (this.#table.size + this.#draining.size < this.#table.capacity) return true
    // Those that only wait for the guest's last word make room.
    const ended = this.#table.all().find(connection => connection.state === 'ended')
    if (ended === undefined) return false
    this.#drop(ended)
    return true
  }

  #open(connection: Connection): Connection {
    this.#table.add(connection)
    this.#link.counters[metric.OPENED]! += 1
    this.#link.counters[metric.CONNECTIONS] = this.#table.size
    this.#updatePoll(connection)
    return connection
  }

  /** A process of the host asked for a port of the guest. */
  #connectToGuest(fd: number, guestPort: number): void {
    do this.#nextPort = this.#nextPort >= 0xffff_fffe ? FIRST_HOST_PORT : this.#nextPort + 1
    while (this.#table.usesHostPort(this.#nextPort))
    const connection = this.#open(new Connection(fd, this.#nextPort, guestPort, 'asked'))
    connection.owesRequest = true
    this.#asked.add(connection)
    this.#table.enqueue(connection)
    this.#pump()
  }

  /** The guest took too long: the host's process is told by the end of its socket, the guest by RST. */
  #unanswered(connection: Connection): void {
    try {
      if (connection.gone || connection.state !== 'asked') return
      this.#link.counters[metric.TIMED_OUT]! += 1
      // One that was never sent is nothing to the guest.
      if (connection.owesRequest) this.#drop(connection)
      else this.#resetConnection(connection)
      this.#pump()
    } catch (error) {
      this.#link.fail(error)
    }
  }

  #onSocket(connection: Connection, events: number): void {
    try {
      if (events & (POLLHUP | POLLERR)) {
        connection.hungUp = true
        if (connection.state === 'asked') this.#resetConnection(connection)
      }
      if (events & (POLLIN | POLLHUP | POLLERR)) connection.readable = true
      if (connection.backlogLength > 0) this.#flushBacklog(connection)
      this.#settle(connection)
      this.#updatePoll(connection)
      if (connection.gone) return
      this.#table.enqueue(connection)
      this.#pump()
    } catch (error) {
      this.#link.fail(error)
    }
  }

  /** After anything that may have ended a direction. */
  #settle(connection: Connection): void {
    const { guestShutdown } = connection
    const flushed = connection.backlogLength === 0
    if (this.#draining.has(connection)) {
      if (!flushed && !connection.hungUp) return
      this.#draining.delete(connection)
      this.#close(connection)
      return
    }
    if (connection.state !== 'open') {
      if (guestShutdown === BOTH && connection.state === 'ended') this.#resetConnection(connection)
      return
    }
    if (guestShutdown === BOTH && (flushed || connection.hungUp)) {
      // The guest has closed; it waits for this (5.10.6.5).
      this.#resetConnection(connection)
      return
    }
    if (guestShutdown & packet.NO_RECEIVE) {
      connection.readable = false
      shutdownRead(connection.fd)
    }
    const guestDone = (guestShutdown & packet.NO_SEND) !== 0 && flushed
    if (guestDone) shutdownWrite(connection.fd)
    const hostDone = (connection.saidShutdown & packet.NO_SEND) !== 0
    if (connection.saidShutdown === BOTH || (guestDone && hostDone)) {
      this.#close(connection)
      connection.state = 'ended'
      if (connection.saidShutdown !== BOTH) {
        connection.owesShutdown = BOTH
        this.#table.enqueue(connection)
      }
    }
    this.#updatePoll(connection)
  }

  /** An abrupt end from our side. */
  #resetConnection(connection: Connection): void {
    connection.owesReset = true
    connection.readable = false
    this.#link.counters[metric.RESETS]! += 1
    this.#close(connection)
    this.#table.enqueue(connection)
  }

  /** The guest's RST: nothing more from it, but what it sent before is still delivered. */
  #letGo(connection: Connection): void {
    if (connection.backlogLength > 0 && !connection.hungUp && connection.fd >= 0) {
      this.#table.remove(connection)
      connection.gone = true
      this.#draining.add(connection)
      this.#updatePoll(connection)
    } else this.#drop(connection)
    this.#link.counters[metric.CONNECTIONS] = this.#table.size
  }

  #drop(connection: Connection): void {
    this.#close(connection)
    this.#table.remove(connection)
    connection.gone = true
    this.#link.counters[metric.CONNECTIONS] = this.#table.size
  }

  /** Lets go of the socket and the buffer. */
  #close(connection: Connection): void {
    if (connection.backlogLength > 0) {
      connection.popBacklog(connection.backlogLength)
      this.#backlogs--
      this.#link.counters[metric.BUFFERED_BYTES] = this.#backlogs * BUFFER_BYTES
    }
    this.#asked.finish(connection)
    if (connection.fd < 0) return
    if (connection.events >= 0) this.#link.poll.remove(connection.fd)
    connection.events = -1
    closeFd(connection.fd)
    connection.fd = -1
    this.#listener.listen(true)
  }

  /** Waits for what can be used now. A socket that hung up is never waited for: it would always be ready. */
  #updatePoll(connection: Connection): void {
    if (connection.fd < 0) return
    const { poll } = this.#link
    let events = connection.backlogLength > 0 ? POLLOUT : 0
    const mayRead =
      connection.state === 'open' &&
      !connection.readable &&
      !connection.owesResponse &&
      ((connection.saidShutdown | connection.owesShutdown) & packet.NO_SEND) === 0 &&
      (connection.guestShutdown & packet.NO_RECEIVE) === 0
    if (mayRead && !this.#draining.has(connection)) events |= POLLIN
    if (connection.hungUp) events = -1
    if (events === connection.events) return
    if (events < 0) poll.remove(connection.fd)
    else if (connection.events < 0) poll.add(connection.fd, events, ready => this.#onSocket(connection, ready))
    else poll.setEvents(connection.fd, events)
    connection.events = events
  }

  /** Tells the guest that the packet in `#header` has no connection here. */
  #refuse(type: number): void {
    this.#link.counters[metric.RESETS]! += 1
    this.#replies.push(this.#header.dstPort, this.#header.srcPort, type)
  }

  save(): SavedValue {
    return saveVsock(this.#nextPort)
  }

  restore(state: SavedValue): void {
    this.#nextPort = restoreVsock(state, FIRST_HOST_PORT)
    this.#link.changeConfig(0, this.config)
    // Sent when the event queue is looked at, which is as soon as the loop turns.
    this.#eventPending = this.#queues.length > 0
  }

  close(): void {
    this.#listener.close()
    this.#asked.stop()
  }
}
