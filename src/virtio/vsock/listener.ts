/** The Unix socket through which host processes reach the guest: `CONNECT <port>\n` opens a connection to that port. */
import { unlinkSync } from 'node:fs'
import { closeFd } from '../../host/file.ts'
import { POLLERR, POLLHUP, POLLIN, type PollSet } from '../../host/poll.ts'
import { acceptUnix, BROKEN, listenUnix, peekBytes, readBytes, WOULD_BLOCK } from '../../host/unix-socket.ts'
import { Deadlines } from './deadlines.ts'

/** "CONNECT 4294967295\n" and some. */
const MAX_LINE = 32
const NEWLINE = 10

export interface ConnectHandler {
  hasRoom(): boolean
  /** Takes the socket over. */
  connect(fd: number, guestPort: number): void
  fail(error: unknown): void
}

export class ConnectListener {
  readonly #path: string
  readonly #fd: number
  readonly #handler: ConnectHandler
  readonly #line = new Uint8Array(MAX_LINE)
  /** Accepted, and not yet done saying where they want to go. */
  readonly #greeting = new Set<number>()
  readonly #deadlines: Deadlines<number>
  #poll: PollSet | undefined
  #listening = false

  /** A process that connects has so long to say where to. */
  constructor(path: string, timeoutMs: number, handler: ConnectHandler) {
    this.#path = path
    this.#handler = handler
    this.#fd = listenUnix(path)
    this.#deadlines = new Deadlines(timeoutMs, fd => this.#end(fd))
  }

  start(poll: PollSet): void {
    this.#poll = poll
    this.#deadlines.start(poll)
    this.listen(true)
  }

  /** A listener that cannot accept (no more descriptors) would be ready for ever: it is left out until something closes. */
  listen(wanted: boolean): void {
    if (wanted === this.#listening || this.#poll === undefined) return
    this.#listening = wanted
    if (wanted) this.#poll.add(this.#fd, POLLIN, () => this.#accept())
    else this.#poll.remove(this.#fd)
  }

  stop(): void {
    for (const fd of this.#greeting) this.#end(fd)
    this.listen(false)
    this.#deadlines.stop()
    this.#poll = undefined
  }

  #accept(): void {
    for (;;) {
      const fd = acceptUnix(this.#fd)
      if (fd === BROKEN) this.listen(false)
      if (fd < 0) return
      if (this.#greeting.size >= 64 || !this.#handler.hasRoom()) {
        closeFd(fd)
        continue
      }
      this.#greeting.add(fd)
      this.#deadlines.add(fd)
      this.#poll!.add(fd, POLLIN, events => this.#greet(fd, events))
    }
  }

  #greet(fd: number, events: number): void {
    try {
      const line = this.#line
      const got = peekBytes(fd, line)
      if (got === WOULD_BLOCK && (events & (POLLHUP | POLLERR)) === 0) return
      const end = got > 0 ? line.subarray(0, got).indexOf(NEWLINE) : -1
      if (end < 0) {
        // An end, an error, or a line that is too long; otherwise the rest is still to come.
        if (got <= 0 || got === MAX_LINE || events & POLLHUP) this.#end(fd)
        return
      }
      readBytes(fd, line.subarray(0, end + 1))
      const port = portOf(new TextDecoder().decode(line.subarray(0, end)))
      if (port < 0 || !this.#handler.hasRoom()) {
        this.#end(fd)
        return
      }
      this.#greeting.delete(fd)
      this.#deadlines.finish(fd)
      this.#poll!.remove(fd)
      this.#handler.connect(fd, port)
    } catch (error) {
      this.#handler.fail(error)
    }
  }

  #end(fd: number): void {
    this.#greeting.delete(fd)
    this.#deadlines.finish(fd)
    this.#poll?.remove(fd)
    closeFd(fd)
    this.listen(true)
  }

  close(): void {
    this.stop()
    closeFd(this.#fd)
    try {
      unlinkSync(this.#path)
    } catch {
      // Somebody cleaned up before us.
    }
  }
}

/** The port of a `CONNECT <port>` line, or -1. */
function portOf(line: string): number {
  const match = /^CONNECT (\d{1,10})\r?$/.exec(line)
  const port = match ? Number(match[1]) : -1
  return port <= 0xffff_ffff ? port : -1
}
