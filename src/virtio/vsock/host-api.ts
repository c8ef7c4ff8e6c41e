/**
 * The guest's vsock ports as Node streams, for the main thread or any other process: nothing but the two kinds of Unix
 * sockets that the device has. Both ends can close their direction by itself, and a reader that stalls stalls the writer.
 */
import { chmodSync, unlinkSync } from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { VirtioError } from '../errors.ts'

const MAX_ANSWER = 32
const NEWLINE = 10

/** Longer than the device waits for its guest: a guest that has no driver yet is not waited for by the device at all. */
const CONNECT_MS = 60_000

export interface ConnectOptions {
  /** When it fails; a minute unless told. */
  readonly timeoutMs?: number
  /** Bytes for whoever answers, to go with the request for a connection. */
  readonly first?: Uint8Array
}

/** Connects to a port that something in the guest listens on. `path` is the device's. */
export function connectToGuest(path: string, port: number, options: ConnectOptions = {}): Promise<Duplex> {
  const { timeoutMs = CONNECT_MS, first = new Uint8Array(0) } = options
  return new Promise((resolve, reject) => {
    const socket = createConnection({ path, allowHalfOpen: true })
    const fail = (why: string): void => {
      clearTimeout(timer)
      socket.destroy()
      reject(new VirtioError('NOT_CONNECTED', `nothing answers on vsock port ${port} of the guest at ${path}: ${why}`))
    }
    const timer = setTimeout(() => fail(`no answer in ${timeoutMs / 1000} s; is the guest up?`), timeoutMs)
    const onEnd = (): void => fail('it refused, or did not answer; is the service started?')
    const onError = (error: Error): void => fail(error.message)
    let answer: Buffer<ArrayBufferLike> = Buffer.alloc(0)
    const onReadable = (): void => {
      const chunk = socket.read() as Buffer | null
      if (chunk === null) return
      answer = Buffer.concat([answer, chunk])
      const end = answer.indexOf(NEWLINE)
      if (end < 0 && answer.length < MAX_ANSWER) return
      clearTimeout(timer)
      socket.off('readable', onReadable)
      socket.off('end', onEnd)
      socket.off('error', onError)
      if (end < 0 || !answer.subarray(0, end).toString('latin1').startsWith('OK ')) {
        fail('it answered in another protocol')
        return
      }
      if (answer.length > end + 1) socket.unshift(answer.subarray(end + 1))
      resolve(socket)
    }
    socket.on('readable', onReadable)
    socket.on('end', onEnd)
    socket.on('error', onError)
    socket.write(Buffer.concat([Buffer.from(`CONNECT ${port}\n`), first]))
  })
}

/** Takes the guest's connections to port `port` of the host (CID 2). Close the server to refuse them again. */
export function listenForGuest(path: string, port: number, onConnection: (stream: Duplex) => void): Promise<Server> {
  const own = `${path}_${port}`
  return new Promise((resolve, reject) => {
    try {
      unlinkSync(own)
    } catch {
      // Usually there is nothing to replace.
    }
    const server = createServer({ allowHalfOpen: true }, (socket: Socket) => onConnection(socket))
    server.once('error', reject)
    server.listen(own, () => {
      server.off('error', reject)
      chmodSync(own, 0o600)
      resolve(server)
    })
  })
}
