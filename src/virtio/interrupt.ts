/** Raises a device's interrupt line. */
import type { InterruptTicket } from '../accel/contract.ts'
import { signalEventFd } from '../host/event-fd.ts'
import { VirtioError } from './errors.ts'

export type RaiseInterrupt = () => void

/** What raises the line of `ticket` from this thread. */
export function interruptRaiser(ticket: InterruptTicket): RaiseInterrupt {
  if (ticket.kind === 'eventfd') return () => signalEventFd(ticket.fd)
  throw new VirtioError('BAD_DESCRIPTION', `no way to raise an interrupt of kind '${ticket.kind}' from a device worker`)
}
