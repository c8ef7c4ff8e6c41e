/** What a visitor says at an entrance (entrance.ts), and the visitor's own side of it as a Node stream. */
import { createConnection, type Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import { NetError } from './errors.ts'

/** 'VTN1', the guest's port, the visitor's own port and address (zero: no matter). */
export const HEADER_BYTES = 24
const MAGIC = 0x5654_4e31
const TAKEN = 0x4b

export interface Wish {
  readonly port: number
  readonly fromPort: number
  readonly from: Uint8Array
}

export function visitorHeader(port: number, fromPort = 0, from?: Uint8Array): Uint8Array {
  const header = new Uint8Array(HEADER_BYTES)
  const view = new DataView(header.buffer)
  view.setUint32(0, MAGIC)
  view.setUint16(4, port)
  view.setUint16(6, fromPort)
  if (from !== undefined) header.set(from, 8)
  return header
}

export function readVisitorHeader(header: Uint8Array): Wish | undefined {
  const view = new DataView(header.buffer, header.byteOffset, HEADER_BYTES)
  const port = view.getUint16(4)
  if (view.getUint32(0) !== MAGIC || port === 0) return undefined
  return { port, fromPort: view.getUint16(6), from: header.slice(8, HEADER_BYTES) }
}

/** Connects to a TCP port of the guest behind the entrance at `path`; rejects when nothing there takes the connection. */
export function visitPort(path: string, port: number, timeoutMs: number): Promise<Duplex> {
  return new Promise((resolve, reject) => {
    const socket: Socket = createConnection({ path, allowHalfOpen: true })
    const fail = (why: string, cause?: Error): void => {
      clearTimeout(timer)
      socket.destroy()
      reject(new NetError('REFUSED', `nothing took the connection to port ${port} of the guest: ${why}`, { cause }))
    }
    const timer = setTimeout(() => fail(`no answer in ${timeoutMs} ms`), timeoutMs)
    const onEnd = (): void => fail('it was refused; does something listen there, on all addresses?')
    const onError = (error: Error): void => fail(error.message, error)
    const onReadable = (): void => {
      const answer = socket.read(1) as Buffer | null
      if (answer === null) return
      clearTimeout(timer)
      socket.off('readable', onReadable).off('end', onEnd).off('error', onError)
      if (answer[0] === TAKEN) resolve(socket)
      else fail('it answered in another protocol')
    }
    socket.on('readable', onReadable).on('end', onEnd).on('error', onError)
    socket.write(visitorHeader(port))
  })
}
