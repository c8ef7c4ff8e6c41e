/**
 * The control channel of a VMM process: JSON lines over a Unix socket. Requests `{id, method, params}` are answered by
 * `{id, result}` or `{id, error: {code, message}}`; `{event, data}` goes to everybody who is connected.
 */
import { connect, createServer, type Server, type Socket } from 'node:net'
import { onLines } from '../host/lines.ts'
import { removeFile } from '../host/remove.ts'
import { BoxError, type BoxErrorCode } from './errors.ts'

/** A line longer than this is nobody we know. */
const LINE_MAX = 1024 * 1024

export type ControlHandler = (params: unknown) => unknown | Promise<unknown>

export class ControlServer {
  readonly #server: Server
  readonly #sockets = new Set<Socket>()

  private constructor(handlers: Readonly<Record<string, ControlHandler>>) {
    this.#server = createServer(socket => {
      this.#sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => this.#sockets.delete(socket))
      onLines(socket, line => {
        if (line.length > LINE_MAX) socket.destroy()
        else
          void serve(handlers, line).then(answer => answer !== undefined && socket.write(`${JSON.stringify(answer)}\n`))
      })
    })
  }

  static async listen(path: string, handlers: Readonly<Record<string, ControlHandler>>): Promise<ControlServer> {
    const control = new ControlServer(handlers)
    // A socket left behind by a VMM that was killed; the caller holds the VMM's lock.
    removeFile(path)
    await new Promise<void>((resolve, reject) => {
      control.#server.once('error', reject)
      control.#server.listen(path, resolve)
    })
    return control
  }

  broadcast(event: string, data: unknown): void {
    const line = `${JSON.stringify({ event, data })}\n`
    for (const socket of this.#sockets) socket.write(line)
  }

  /** The same for what may be lost: somebody who does not read must not make us keep it. */
  broadcastLossy(event: string, data: unknown): void {
    if (this.#sockets.size === 0) return
    const line = `${JSON.stringify({ event, data })}\n`
    for (const socket of this.#sockets) if (socket.writableLength < LINE_MAX) socket.write(line)
  }

  async close(): Promise<void> {
    for (const socket of this.#sockets) socket.end()
    await new Promise<void>(resolve => this.#server.close(() => resolve()))
  }
}

async function serve(handlers: Readonly<Record<string, ControlHandler>>, line: string): Promise<object | undefined> {
  let id: unknown
  try {
    const request = JSON.parse(line) as { id?: unknown; method?: unknown; params?: unknown }
    id = request.id
    const handler = Object.hasOwn(handlers, String(request.method)) ? handlers[String(request.method)] : undefined
    if (!handler) throw new BoxError('INVALID', `the VMM does not know '${String(request.method)}'`)
    return { id, result: (await handler(request.params)) ?? null }
  } catch (error) {
    const { code, message } = error as BoxError
    return { id, error: { code: code ?? 'VMM_FAILED', message } }
  }
}

interface Pending {
  resolve(value: unknown): void
  reject(error: Error): void
}

export class ControlClient {
  readonly #socket: Socket
  readonly #pending = new Map<number, Pending>()
  #nextId = 1
  onEvent: (event: string, data: unknown) => void = () => {}
  onClose: () => void | Promise<void> = () => {}

  private constructor(socket: Socket) {
    this.#socket = socket
    socket.on('error', () => {})
    socket.on('close', () => {
      const error = new BoxError('VMM_FAILED', "the box's VMM process ended")
      for (const { reject } of this.#pending.values()) reject(error)
      this.#pending.clear()
      void this.onClose()
    })
    onLines(socket, line => this.#receive(line))
  }

  /** Connects, or gives undefined when no VMM listens there. */
  static async connect(path: string): Promise<ControlClient | undefined> {
    const socket = connect(path)
    try {
      await new Promise<void>((resolve, reject) => socket.once('connect', resolve).once('error', reject))
    } catch {
      socket.destroy()
      return undefined
    }
    return new ControlClient(socket)
  }

  /** A connected client does not keep the process alive by itself, unless something waits for an answer. */
  unref(): void {
    this.#socket.unref()
  }

  /** Until `unref`: somebody waits for what it will say, or for its end. */
  ref(): void {
    this.#socket.ref()
  }

  call<Result>(method: string, params: unknown = null): Promise<Result> {
    const id = this.#nextId++
    this.#socket.ref()
    return new Promise<Result>((resolve, reject) => {
      if (this.#socket.destroyed) {
        reject(new BoxError('VMM_FAILED', "the box's VMM process ended"))
        return
      }
      this.#pending.set(id, { resolve: value => resolve(value as Result), reject })
      this.#socket.write(`${JSON.stringify({ id, method, params })}\n`)
    }).finally(() => {
      if (this.#pending.size === 0) this.#socket.unref()
    })
  }

  #receive(line: string): void {
    const message = JSON.parse(line) as {
      id?: number
      result?: unknown
      error?: { code: BoxErrorCode; message: string }
      event?: string
      data?: unknown
    }
    if (message.event !== undefined) {
      this.onEvent(message.event, message.data)
      return
    }
    const pending = this.#pending.get(message.id ?? 0)
    this.#pending.delete(message.id ?? 0)
    if (message.error) pending?.reject(new BoxError(message.error.code, message.error.message))
    else pending?.resolve(message.result)
  }

  close(): void {
    this.#socket.destroy()
  }
}
