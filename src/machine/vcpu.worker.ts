/** A vCPU's thread: opens the vCPU its ticket stands for, then serves `run` and the rest while the guest is out. */

import { parentPort } from 'node:worker_threads'
import * as Comlink from 'comlink'
import type { VcpuExit } from '../accel/contract.ts'
import { workerEndpoint } from '../host/worker-endpoint.ts'
import { VcpuService } from './vcpu-service.ts'
import { CONSOLE_READY } from './vcpu-thread.ts'

const port = parentPort
if (!port) throw new Error('vcpu.worker.ts runs in a worker only')

class VcpuWorker extends VcpuService {
  /** Blocks this thread until the guest is left. */
  run(): VcpuExit {
    return this.vcpu.run(this.entered())
  }
}

export type VcpuApi = VcpuWorker

Comlink.expose(new VcpuWorker({ ready: () => port.postMessage(CONSOLE_READY) }), workerEndpoint(port))
