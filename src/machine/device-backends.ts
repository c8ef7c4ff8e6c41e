/** Every engine that a device can stand on, so that virtio/ need not know them. */
import { networkDescriptionOf } from '../net/control.ts'
import { NetworkStack } from '../net/stack.ts'
import { openDisk } from '../qcow2/open.ts'
import type { Backends } from '../virtio/worker/descriptions.ts'

export const deviceBackends: Backends = {
  disk: ({ path, format, readOnly, backingFolders }) =>
    openDisk(path, { format, readOnly: readOnly ?? false, ...(backingFolders ? { backingFolders } : {}) }),
  link: ({ kind, options }) => (kind === 'user' ? new NetworkStack(networkDescriptionOf(options ?? {})) : undefined),
}
