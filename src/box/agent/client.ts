/**
 * A connection to the agent of a running guest. One client carries any number of processes and requests at once, each
 * on a channel of its own. When the connection ends, everything under way fails with `DISCONNECTED`.
 */
import type { Duplex } from 'node:stream'
import { AgentError, errnoName } from './errors.ts'
import {
  ExecFlag,
  ExitFlag,
  ExitKind,
  FLAG_EOF,
  FRAME_HEADER_SIZE,
  FRAME_PAYLOAD_MAX,
  Frame,
  type FrameType,
  PayloadReader,
  PayloadWriter,
  PROTOCOL_VERSION,
  Stream,
} from './protocol.ts'
import { ChannelReadable, ChannelWritable } from './streams.ts'

const HELLO_TIMEOUT_MS = 10_000

export interface ExecRequest {
  readonly argv: readonly string[]
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
  readonly user?: string
  /** A terminal of this size instead of pipes. */
  readonly tty?: { readonly rows: number; readonly columns: number }
  /** The process is killed after this long. */
  readonly timeoutMs?: number
  /** The process goes on when the connection ends. */
  readonly survives?: boolean
  /** Its standard input is empty: said together with the request, in one piece. */
  readonly noInput?: boolean
}

/** How a process ended. */
export interface ProcessExit {
  /** The exit status; null when a signal ended it. */
  readonly exitCode: number | null
  /** The number of the signal that ended it. */
  readonly signal: number | null
  readonly timedOut: boolean
  readonly coreDumped: boolean
}

/** A process in the guest, as its channel shows it. */
export interface AgentProcess {
  readonly stdin: ChannelWritable
  readonly stdout: ChannelReadable
  readonly stderr: ChannelReadable
  /** Resolves when it has been started; rejects with the guest's errno when it cannot be. */
  readonly started: Promise<{ pid: number }>
  readonly exit: Promise<ProcessExit>
  signal(number: number): void
  resize(rows: number, columns: number): void
  /** Kills it and forgets it. */
  close(): void
}

/** A watch on files, until closed. */
export interface AgentWatch {
  readonly started: Promise<void>
  close(): void
}

interface Deferred<T> {
  readonly promise: Promise<T>
  resolve(value: T): void
  reject(error: Error): void
}

function defer<T>(): Deferred<T> {
  let resolve!: (value: T) => void
  let reject!: (error: Error) => void
  const promise = new Promise<T>((yes, no) => {
    resolve = yes
    reject = no
  })
  // Somebody who only waits for the exit must not be punished for not looking at the start.
  promise.catch(() => {})
  return { promise, resolve, reject }
}

function frameHeader(channel: number, type: FrameType, stream: number, flags: number, length: number): Buffer {
  const header = Buffer.allocUnsafe(FRAME_HEADER_SIZE)
  header.writeUInt32LE(length, 0)
  header.writeUInt32LE(channel, 4)
  header.writeUInt8(type, 8)
  header.writeUInt8(stream, 9)
  header.writeUInt16LE(flags, 10)
  return header
}

interface Channel {
  onFrame(type: number, stream: number, flags: number, payload: Buffer): void
  onDisconnect(error: AgentError): void
}

export class AgentClient {
  readonly #stream: Duplex
  readonly #channels = new Map<number, Channel>()
  readonly #hello = defer<void>()
  #nextChannel = 1
  #unparsed: Buffer[] = []
  #unparsedSize = 0
  #drained: Deferred<void> | undefined
  #failure: AgentError | undefined
  #onClose: ((error: AgentError) => void) | undefined

  private constructor(stream: Duplex) {
    this.#stream = stream
    stream.on('data', (chunk: Buffer) => this.#receive(chunk))
    stream.on('drain', () => {
      this.#drained?.resolve()
      this.#drained = undefined
    })
    stream.on('error', error =>
      this.#fail(new AgentError('DISCONNECTED', `the connection to the guest failed: ${error.message}`)),
    )
    const onEnd = (): void => this.#fail(new AgentError('DISCONNECTED', 'the connection to the guest ended'))
    // A stream that allows half-open connections ends without closing.
    stream.on('end', onEnd)
    stream.on('close', onEnd)
  }

  /** What a connection begins with. */
  static get greeting(): Buffer {
    const payload = new PayloadWriter().u32(PROTOCOL_VERSION).finish()
    return Buffer.concat([frameHeader(0, Frame.HELLO, 0, 0, payload.length), payload])
  }

  /** Greets the agent at the other end of `stream`, which belongs to the client from then on, and waits for its answer. */
  static async connect(stream: Duplex, timeoutMs = HELLO_TIMEOUT_MS): Promise<AgentClient> {
    stream.write(AgentClient.greeting)
    const client = AgentClient.greeted(stream, timeoutMs)
    await client.answered()
    return client
  }

  /** Resolves when the agent has answered the greeting. */
  answered(): Promise<void> {
    return this.#hello.promise
  }

  /** The same when the greeting has been sent, without waiting: requests can follow at once. They fail if the agent does not answer it, or is another. */
  static greeted(stream: Duplex, timeoutMs = HELLO_TIMEOUT_MS): AgentClient {
    const client = new AgentClient(stream)
    const timer = setTimeout(
      () => client.#fail(new AgentError('TIMEOUT', `the agent in the guest did not answer within ${timeoutMs} ms`)),
      timeoutMs,
    )
    void client.#hello.promise.catch(() => {}).finally(() => clearTimeout(timer))
    return client
  }

  /** Called once, when the connection has ended for whatever reason. */
  set onClose(listener: (error: AgentError) => void) {
    this.#onClose = listener
    if (this.#failure) listener(this.#failure)
  }

  /** Whether requests can still be made. */
  get isOpen(): boolean {
    return this.#failure === undefined
  }

  close(): void {
    this.#fail(new AgentError('DISCONNECTED', 'the connection to the guest was closed'))
  }

  exec(request: ExecRequest): AgentProcess {
    const flags = (request.tty ? ExecFlag.TTY : 0) | (request.survives ? ExecFlag.SURVIVES : 0)
    const payload = new PayloadWriter()
      .u32(flags)
      .u32(request.timeoutMs ?? 0)
      .u16(request.tty?.rows ?? 0)
      .u16(request.tty?.columns ?? 0)
      .string(request.user ?? '')
      .string(request.cwd ?? '')
      .strings(request.argv)
      .strings(Object.entries(request.env ?? {}).map(([name, value]) => `${name}=${value}`))
      .finish()
    this.#stream.cork()
    const process = this.process(Frame.EXEC, payload)
    if (request.noInput) process.stdin.end()
    this.#stream.uncork()
    return process
  }

  /** Opens a channel that behaves like a process: a command, or a request that streams. */
  process(type: FrameType, payload: Buffer): AgentProcess {
    const id = this.#nextChannel++
    const started = defer<{ pid: number }>()
    const exit = defer<ProcessExit>()
    // A command goes on without its streams; a file that nobody reads on, or that will not be complete, is given up.
    const isCommand = type === Frame.EXEC
    const close = (): void => {
      this.#sendOpen(id, Frame.CLOSE, Buffer.alloc(0))
      exit.reject(new AgentError('CLOSED', 'it was closed before its end'))
      end()
    }
    const readable = (stream: number) =>
      new ChannelReadable(
        bytes => {
          if (this.#channels.has(id))
            void this.#send(id, Frame.WINDOW, stream, 0, new PayloadWriter().u32(bytes).finish())
        },
        () => {
          if (!isCommand) close()
        },
      )
    const stdout = readable(Stream.STDOUT)
    const stderr = readable(Stream.STDERR)
    const sendInput = (chunk: Uint8Array, eof: boolean): Promise<void> | undefined => {
      if (!this.#channels.has(id)) return undefined
      return this.#send(id, Frame.DATA, Stream.STDIN, eof ? FLAG_EOF : 0, chunk)
    }
    const stdin = new ChannelWritable(sendInput, () => {
      if (isCommand) void sendInput(new Uint8Array(0), true)
      else close()
    })
    const end = (): void => {
      this.#channels.delete(id)
      stdin.close()
      // Whether contents are complete is known when it is known how their sender ended: settled() ends them.
      if (isCommand) stdout.finish()
      stderr.finish()
    }
    const onExit = (reader: PayloadReader): void => {
      const kind = reader.u32()
      const value = reader.u32()
      const flags = reader.u32()
      const message = reader.string()
      end()
      if (kind === ExitKind.NOT_STARTED) {
        const error = new AgentError(errnoName(value), message)
        started.reject(error)
        exit.reject(error)
        return
      }
      exit.resolve({
        exitCode: kind === ExitKind.CODE ? value : null,
        signal: kind === ExitKind.SIGNAL ? value : null,
        timedOut: (flags & ExitFlag.TIMED_OUT) !== 0,
        coreDumped: (flags & ExitFlag.CORE) !== 0,
      })
    }
    this.#open(id, type, payload, {
      onFrame: (frame, stream, flags, bytes) => {
        if (frame === Frame.STARTED) started.resolve({ pid: new PayloadReader(bytes).u32() })
        else if (frame === Frame.EXIT) onExit(new PayloadReader(bytes))
        else if (frame === Frame.WINDOW) stdin.grant(new PayloadReader(bytes).u32())
        else if (frame === Frame.DATA) {
          const target = stream === Stream.STDERR ? stderr : stdout
          if (bytes.length > 0 && !target.receive(bytes)) this.#protocolError('sent more data than it was allowed to')
          if (flags & FLAG_EOF && (isCommand || target === stderr)) target.finish()
        }
      },
      onDisconnect: error => {
        started.reject(error)
        exit.reject(error)
        stdin.destroy(isCommand ? undefined : error)
        stdout.destroy(error)
        stderr.destroy(error)
      },
    })
    // A stream that nobody listens to must not bring the host process down; `exit` carries the error.
    for (const stream of [stdin, stdout, stderr]) stream.on('error', () => {})
    return {
      stdin,
      stdout,
      stderr,
      started: started.promise,
      exit: exit.promise,
      signal: number => void this.#sendOpen(id, Frame.SIGNAL, new PayloadWriter().u32(number).finish()),
      resize: (rows, columns) =>
        void this.#sendOpen(id, Frame.RESIZE, new PayloadWriter().u16(rows).u16(columns).finish()),
      close,
    }
  }

  /** A request with one answer; rejects with the guest's errno. `subject` is what the message names. */
  request(type: FrameType, payload: Buffer, subject: string): Promise<PayloadReader> {
    const id = this.#nextChannel++
    const answer = defer<PayloadReader>()
    this.#open(id, type, payload, {
      onFrame: (frame, _stream, _flags, bytes) => {
        if (frame !== Frame.RESULT) return
        this.#channels.delete(id)
        const reader = new PayloadReader(bytes)
        const errno = reader.u32()
        if (errno === 0) answer.resolve(reader)
        else answer.reject(new AgentError(errnoName(errno), `${subject}: ${reader.string()}`))
      },
      onDisconnect: answer.reject,
    })
    return answer.promise
  }

  /** Watches files; `onEvent` gets the kind (protocol.ts, EventKind) and the path. */
  watch(
    path: string,
    recursive: boolean,
    onEvent: (kind: number, path: string) => void,
    onEnd: (error: Error) => void,
  ): AgentWatch {
    const id = this.#nextChannel++
    const started = defer<void>()
    const end = (error: Error): void => {
      this.#channels.delete(id)
      started.reject(error)
      onEnd(error)
    }
    this.#open(
      id,
      Frame.WATCH,
      new PayloadWriter()
        .string(path)
        .u32(recursive ? 1 : 0)
        .finish(),
      {
        onFrame: (frame, _stream, _flags, bytes) => {
          const reader = new PayloadReader(bytes)
          if (frame === Frame.STARTED) started.resolve()
          else if (frame === Frame.EVENT) onEvent(reader.u32(), reader.string())
          else if (frame === Frame.EXIT) {
            reader.u32()
            const errno = reader.u32()
            reader.u32()
            end(new AgentError(errnoName(errno), reader.string()))
          }
        },
        onDisconnect: end,
      },
    )
    return {
      started: started.promise,
      close: () => {
        this.#sendOpen(id, Frame.CLOSE, Buffer.alloc(0))
        this.#channels.delete(id)
      },
    }
  }

  #open(id: number, type: FrameType, payload: Buffer, channel: Channel): void {
    if (this.#failure) {
      channel.onDisconnect(this.#failure)
      return
    }
    if (payload.length > FRAME_PAYLOAD_MAX) {
      channel.onDisconnect(
        new AgentError(
          'E2BIG',
          `the request is too large for the guest (${payload.length} bytes, at most ${FRAME_PAYLOAD_MAX})`,
        ),
      )
      return
    }
    this.#channels.set(id, channel)
    void this.#send(id, type, 0, 0, payload)
  }

  #sendOpen(id: number, type: FrameType, payload: Buffer): void {
    if (this.#channels.has(id)) void this.#send(id, type, 0, 0, payload)
  }

  /** Sends a frame; a promise when the stream is full, to wait for before sending more data. */
  #send(
    channel: number,
    type: FrameType,
    stream: number,
    flags: number,
    payload: Uint8Array,
  ): Promise<void> | undefined {
    if (this.#failure) return undefined
    this.#stream.cork()
    this.#stream.write(frameHeader(channel, type, stream, flags, payload.length))
    const room = payload.length === 0 || this.#stream.write(payload)
    this.#stream.uncork()
    if (room) return undefined
    this.#drained ??= defer<void>()
    return this.#drained.promise
  }

  #receive(chunk: Buffer): void {
    this.#unparsed.push(chunk)
    this.#unparsedSize += chunk.length
    while (this.#unparsedSize >= FRAME_HEADER_SIZE && !this.#failure) {
      let head = this.#unparsed[0]!
      if (head.length < FRAME_HEADER_SIZE) head = this.#joined()
      const size = head.readUInt32LE(0)
      if (size > FRAME_PAYLOAD_MAX) {
        this.#protocolError('sent a frame that is too large')
        return
      }
      if (this.#unparsedSize < FRAME_HEADER_SIZE + size) return
      if (head.length < FRAME_HEADER_SIZE + size) head = this.#joined()
      const end = FRAME_HEADER_SIZE + size
      this.#unparsedSize -= end
      if (head.length === end) this.#unparsed.shift()
      else this.#unparsed[0] = head.subarray(end)
      try {
        this.#dispatch(
          head.readUInt32LE(4),
          head[8]!,
          head[9]!,
          head.readUInt16LE(10),
          head.subarray(FRAME_HEADER_SIZE, end),
        )
      } catch (error) {
        if (!(error instanceof RangeError)) throw error
        this.#protocolError(error.message)
      }
    }
  }

  #joined(): Buffer {
    const all = Buffer.concat(this.#unparsed)
    this.#unparsed = [all]
    return all
  }

  #dispatch(channel: number, type: number, stream: number, flags: number, payload: Buffer): void {
    if (type === Frame.HELLO) {
      const version = new PayloadReader(payload).u32()
      if (version === PROTOCOL_VERSION) this.#hello.resolve()
      else
        this.#fail(
          new AgentError(
            'VERSION',
            `the agent in the guest speaks version ${version} of the protocol, this Vitrine ${PROTOCOL_VERSION}: restart the box`,
          ),
        )
      return
    }
    // A channel that ended meanwhile is not an error: frames cross on their way.
    this.#channels.get(channel)?.onFrame(type, stream, flags, payload)
  }

  #protocolError(what: string): void {
    this.#fail(new AgentError('PROTOCOL', `the agent in the guest broke the protocol: ${what}`))
  }

  #fail(error: AgentError): void {
    if (this.#failure) return
    this.#failure = error
    this.#hello.reject(error)
    this.#drained?.resolve()
    for (const channel of [...this.#channels.values()]) channel.onDisconnect(error)
    this.#channels.clear()
    this.#stream.destroy()
    this.#onClose?.(error)
  }
}
