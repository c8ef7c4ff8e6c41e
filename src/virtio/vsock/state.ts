/**
 * Connections do not survive: their other ends are sockets of processes that were not saved. A restored guest is told so
 * by a TRANSPORT_RESET event (VIRTIO 1.2, 5.10.6.7), and that its CID may be another now.
 */
import type { SavedValue } from '../device.ts'
import { integerOf, recordOf } from '../saved.ts'

const VERSION = 1

export const saveVsock = (nextPort: number): SavedValue => ({ version: VERSION, nextPort })

/** The next host port, so that the guest does not meet one that it still remembers. */
export function restoreVsock(state: SavedValue, firstPort: number): number {
  const saved = recordOf(state, 'the vsock device')
  integerOf(saved.version, "the vsock device's version", VERSION, VERSION)
  return integerOf(saved.nextPort, 'the next port', firstPort, 0xffff_ffff)
}
