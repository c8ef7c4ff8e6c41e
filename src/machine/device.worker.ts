/** The device worker. */
import { workerData } from 'node:worker_threads'
import type { WorkerStart } from '../virtio/worker/protocol.ts'
import { serveDevices } from '../virtio/worker/serve.ts'
import { deviceBackends } from './device-backends.ts'

void serveDevices(workerData as WorkerStart, deviceBackends)
