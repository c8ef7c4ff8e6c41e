/**
 * Which thread of a VMM runs what.
 *
 * One vCPU of the software CPU shares the main thread with its devices: then a guest that does little costs a process and nothing else, and a
 * request from the guest is served without waking anybody. A disk that keeps it waiting moves to a thread of its own while the guest runs. Everything else has threads: vCPUs one each; the small devices share one; disk and network
 * card have one each where the host has cores for them beside the vCPUs, and share it too where they would only take turns. A thread adds some 20 ms and
 * 8 MiB to every start.
 */
import { availableParallelism } from 'node:os'
import { assetUrl } from '../../host/assets.ts'
import { MainLoop } from '../../host/main-loop.ts'
import { deviceBackends } from '../../machine/device-backends.ts'
import { LocalVcpu } from '../../machine/local-vcpu.ts'
import type { VcpuHandle } from '../../machine/vcpu-handle.ts'
import { startVcpuThreads } from '../../machine/vcpu-thread.ts'
import type { DeviceHost, DeviceReport } from '../../virtio/worker/device-host.ts'
import { DeviceWorker } from '../../virtio/worker/device-worker.ts'
import { LocalDevices } from '../../virtio/worker/local-devices.ts'
import type { LaunchPlan } from './launch.ts'
import { fitsOneThread } from './one-thread.ts'

export interface Placement {
  readonly vcpus: readonly VcpuHandle[]
  /** For devices that do little. */
  readonly shared: DeviceHost
  /** For one that may do much. */
  busy(): DeviceHost
  /** For one that turns out to keep the vCPU of the same thread waiting: a thread, and what it needs to reach that vCPU. */
  away?(): Promise<{ readonly host: DeviceHost; readonly wakeFd: number }>
}

const onReport = ({ message, times }: DeviceReport): void => {
  process.stderr.write(`device: ${message}${times > 1 ? ` (${times} times)` : ''}\n`)
}

export const placementFor = ({ accel }: Pick<LaunchPlan, 'accel'>, cpus: number): Placement =>
  fitsOneThread(accel, cpus) ? onThisThread() : onThreads(cpus)

function onThisThread(): Placement {
  const loop = new MainLoop()
  const shared = new LocalDevices(loop, deviceBackends, onReport)
  const away = async () => {
    const host = newWorker()
    await host.ready()
    return { host, wakeFd: loop.wakeFd }
  }
  return { vcpus: [new LocalVcpu(loop)], shared, busy: () => shared, away }
}

const newWorker = (): DeviceWorker => new DeviceWorker(assetUrl('device.worker.cjs'), onReport)

function onThreads(cpus: number): Placement {
  const shared = newWorker()
  let spare = availableParallelism() - cpus - 1
  return { vcpus: startVcpuThreads(cpus), shared, busy: () => (spare-- > 0 ? newWorker() : shared) }
}
