/** The devices of a box, and which worker serves which: disk and network card have one each, the small ones share one. */
import { dirname } from 'node:path'
import { assetUrl } from '../../host/assets.ts'
import type { MachineDevice } from '../../machine/device-slots.ts'
import { GUEST_NETWORK } from '../../net/description.ts'
import type { SavedValue } from '../../virtio/device.ts'
import type { DeviceDescription } from '../../virtio/worker/descriptions.ts'
import { DeviceWorker } from '../../virtio/worker/device-worker.ts'
import { HostedDevice } from '../../virtio/worker/hosted-device.ts'
import type { BoxFolder } from '../home.ts'
import type { BoxRecord } from '../record.ts'
import type { GuestNetwork } from './identity.ts'
import type { OpenPort } from './launch.ts'

/** The guest's address on vsock. Every VMM is a world of its own, so all guests have the same. */
const GUEST_CID = 3

export interface BoxDevices {
  /** In the order in which the guest finds them. */
  readonly all: readonly MachineDevice[]
  /** What the guest is to be told about its network; null when it has none. */
  readonly network: GuestNetwork | null
  /** Connections to the guest that are open now. */
  openConnections(): Promise<number>
  /** Host ports that lead into the guest, with the numbers that were chosen for them. */
  openPorts(): Promise<readonly OpenPort[]>
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
  const all = [new HostedDevice(newWorker(), disk), vsock, new HostedDevice(shared, { kind: 'rng' })]
  const card = networkCard(record)
  const net = card && new HostedDevice(newWorker(), card)
  return {
    all: net ? [...all, net] : all,
    network: net ? GUEST_ADDRESSES : null,
    openConnections: async () => (await vsock.metrics()).connections ?? 0,
    openPorts: async () =>
      net ? ((await net.control({ link: { do: 'ports' } })) as unknown as readonly OpenPort[]) : [],
  }
}

/** What every guest is told: each has the user-mode network (src/net) to itself. */
const GUEST_ADDRESSES: GuestNetwork = {
  address4: `${GUEST_NETWORK.guest4}/${GUEST_NETWORK.prefix4}`,
  gateway4: GUEST_NETWORK.gateway4,
  address6: `${GUEST_NETWORK.guest6}/${GUEST_NETWORK.prefix6}`,
  gateway6: GUEST_NETWORK.gateway6,
  resolver: GUEST_NETWORK.dns4,
}

/** A box that may reach nothing and publishes nothing has no card at all. */
function networkCard({ id, config: { network, ports } }: BoxRecord): DeviceDescription | undefined {
  if (network === 'none' && ports.length === 0) return undefined
  // Locally administered, and the same for as long as the box exists.
  const mac = ['02', ...(id.slice(2).match(/../g) ?? [])].join(':')
  // Plain values: they were read from JSON.
  const options = { policy: network, ports } as unknown as SavedValue
  return { kind: 'net', mac, link: { kind: 'user', options } }
}
