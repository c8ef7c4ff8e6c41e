/** The device worker: knows every engine that a device can stand on, so that virtio/ need not. */
import { workerData } from 'node:worker_threads'
import { networkDescriptionOf } from '../net/control.ts'
import { NetworkStack } from '../net/stack.ts'
import { openDisk } from '../qcow2/open.ts'
import type { Backends } from '../virtio/worker/descriptions.ts'
import type { WorkerStart } from '../virtio/worker/protocol.ts'
import { serveDevices } from '../virtio/worker/serve.ts'

const backends: Backends = {
  disk: ({ path, format, readOnly, backingFolders }) =>
    openDisk(path, { format, readOnly: readOnly ?? false, ...(backingFolders ? { backingFolders } : {}) }),
  link: ({ kind, options }) => (kind === 'user' ? new NetworkStack(networkDescriptionOf(options ?? {})) : undefined),
}

void serveDevices(workerData as WorkerStart, backends)
