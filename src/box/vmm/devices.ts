/** The devices of a box, and which worker serves which: the disk has one of its own, the small ones share one. */
import { dirname } from 'node:path'
import { assetUrl } from '../../host/assets.ts'
import type { MachineDevice } from '../../machine/device-slots.ts'
import type { DeviceDescription } from '../../virtio/worker/descriptions.ts'
import { DeviceWorker } from '../../virtio/worker/device-worker.ts'
import { HostedDevice } from '../../virtio/worker/hosted-device.ts'
import type { BoxFolder } from '../home.ts'
import type { BoxRecord } from '../record.ts'
import type { GuestNetwork } from './identity.ts'

/** The guest's address on vsock. Every VMM is a world of its own, so all guests have the same. */
const GUEST_CID = 3

export interface BoxDevices {
  /** In the order in which the guest finds them. */
  readonly all: readonly MachineDevice[]
  /** What the guest is to be told about its network; null when it has none. */
  readonly network: GuestNetwork | null
  /** Connections to the guest that are open now. */
  openConnections(): Promise<number>
}

export function boxDevices(folder: BoxFolder, record: BoxRecord): BoxDevices {
  const onReport = ({ message, times }: { message: string; times: number }): void => {
    process.stderr.write(`device: ${message}${times > 1 ? ` (${times} times)` : ''}\n`)
  }
  const newWorker = (): DeviceWorker => new DeviceWorker(assetUrl('device.worker.js'), onReport)
  const shared = newWorker()
  const disk: DeviceDescription = {
    kind: 'blk',
    disk: { path: folder.disk, format: 'qcow2', backingFolders: [folder.path, dirname(record.baseDisk)] },
    serial: record.id,
  }
  const vsock = new HostedDevice(shared, { kind: 'vsock', cid: GUEST_CID, path: folder.vsockSocket })
  return {
    all: [new HostedDevice(newWorker(), disk), vsock, new HostedDevice(shared, { kind: 'rng' })],
    network: null,
    openConnections: async () => (await vsock.metrics()).connections ?? 0,
  }
}
