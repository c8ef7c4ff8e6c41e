/** The device worker: knows every engine that a device can stand on, so that virtio/ need not. */
import { workerData } from 'node:worker_threads'
import { RawFile } from '../virtio/blk/raw-file.ts'
import type { Backends } from '../virtio/worker/descriptions.ts'
import type { WorkerStart } from '../virtio/worker/protocol.ts'
import { serveDevices } from '../virtio/worker/serve.ts'

const backends: Backends = {
  disk: ({ path, format, readOnly }) => {
    if (format === 'raw') return new RawFile(path, { readOnly: readOnly ?? false })
    throw new Error(`a disk of format '${format}' cannot be opened yet: convert it to raw`)
  },
}

serveDevices(workerData as WorkerStart, backends)
