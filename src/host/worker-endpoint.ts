/** Comlink over Node's workers: its endpoints have the web's `addEventListener`, Node's threads have `on`. */

import type { MessagePort, Worker } from 'node:worker_threads'
import type { Endpoint } from 'comlink'

type Listener = Parameters<Endpoint['addEventListener']>[1]

export function workerEndpoint(port: Worker | MessagePort): Endpoint {
  const listeners = new Map<Listener, (data: unknown) => void>()
  return {
    postMessage: (message, transfer) => port.postMessage(message, transfer as never),
    addEventListener: (_type, listener) => {
      const forward = (data: unknown): void => {
        // Comlink reads nothing of an event but its data.
        const event = { data } as MessageEvent
        if (typeof listener === 'function') listener(event as unknown as Event)
        else listener.handleEvent(event as unknown as Event)
      }
      listeners.set(listener, forward)
      port.on('message', forward)
    },
    removeEventListener: (_type, listener) => {
      const forward = listeners.get(listener)
      if (!forward) return
      port.off('message', forward)
      listeners.delete(listener)
    },
  }
}
