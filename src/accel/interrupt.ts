/** A device's interrupt line, in whatever worker the device is. */
import { signalEventFd } from '../host/event-fd.ts'
import type { InterruptTicket } from './contract.ts'

export interface InterruptLine {
  readonly gsi: number
  /** One edge. Set the device's status register before. */
  raise(): void
}

export async function openInterrupt(ticket: InterruptTicket): Promise<InterruptLine> {
  if (ticket.kind === 'eventfd') {
    const { fd, gsi } = ticket
    // Safe: the VM closes the descriptor only after its device workers have ended.
    return { gsi, raise: () => signalEventFd(fd) }
  }
  const { openSoftInterrupt } = await import('../soft/interrupt.ts')
  const { gsi, wakeFd } = ticket
  const raise = openSoftInterrupt(ticket.wasm, gsi, ticket.held)
  if (wakeFd === undefined) return { gsi, raise }
  return {
    gsi,
    raise: () => {
      raise()
      signalEventFd(wakeFd)
    },
  }
}
