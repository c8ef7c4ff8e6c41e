/** The devices of a box. */
import { dirname, resolve } from 'node:path'
import type { InterruptTicket } from '../../accel/contract.ts'
import type { MachineDevice } from '../../machine/device-slots.ts'
import { GUEST_NETWORK, type NetworkDescription } from '../../net/description.ts'
import { SnapshotFolder } from '../../snapshot/folder.ts'
import type { SavedValue } from '../../virtio/device.ts'
import type { DeviceDescription } from '../../virtio/worker/descriptions.ts'
import type { DeviceHost } from '../../virtio/worker/device-host.ts'
import { HostedDevice } from '../../virtio/worker/hosted-device.ts'
import { type BoxFolder, Home } from '../home.ts'
import { joinNetwork } from '../networks.ts'
import type { BoxConfig, BoxRecord } from '../record.ts'
import type { GuestNetwork } from './identity.ts'
import type { Placement } from './placement.ts'

/** The guest's address on vsock. Every VMM is a world of its own, so all guests have the same. */
const GUEST_CID = 3

export interface BoxDevices {
  /** In the order in which the guest finds them. */
  readonly all: readonly MachineDevice[]
  readonly disk: HostedDevice
  /** What the guest is to be told about its network; null when it has none. */
  readonly network: GuestNetwork | null
  /** Has the disk move to a thread of its own; only while the machine is paused. */
  moveDisk(to: { readonly host: DeviceHost; readonly wakeFd: number }): Promise<void>
  /** Connections to the guest that are open now. */
  openConnections(): Promise<number>
  /** Changes to the network and questions about it: src/net/control.ts. Undefined: the box has none. */
  askNetwork?(request: SavedValue): Promise<SavedValue>
}

export function boxDevices(folder: BoxFolder, record: BoxRecord, { shared, busy }: Placement): BoxDevices {
  const { layers } = new SnapshotFolder(resolve(folder.path, '../..'))
  const disk: DeviceDescription = {
    kind: 'blk',
    disk: { path: folder.disk, format: 'qcow2', backingFolders: [folder.path, dirname(record.baseDisk), layers] },
    serial: record.id,
  }
  const vsock = new HostedDevice(shared, { kind: 'vsock', cid: GUEST_CID, path: folder.vsockSocket })
  const blk = new HostedDevice(busy(), disk)
  const all = [blk, vsock, new HostedDevice(shared, { kind: 'rng' })]
  const card = networkCard(folder, record)
  const net = card && new HostedDevice(busy(), card)
  return {
    all: net ? [...all, net] : all,
    disk: blk,
    network: net ? { ...GUEST_ADDRESSES, mac: macOf(record.id) } : null,
    moveDisk: ({ host, wakeFd }) =>
      blk.moveTo(host, slot => ({ ...slot, interrupt: { ...slot.interrupt, wakeFd } as InterruptTicket })),
    openConnections: async () => (await vsock.metrics()).connections ?? 0,
    ...(net ? { askNetwork: request => net.control({ link: request }) } : {}),
  }
}

/** Locally administered, and the same for as long as the box exists. */
const macOf = (id: string): string => ['02', ...(id.slice(2).match(/../g) ?? [])].join(':')

/** What every guest is told: each has the user-mode network (src/net) to itself. */
const GUEST_ADDRESSES: Omit<GuestNetwork, 'mac'> = {
  address4: `${GUEST_NETWORK.guest4}/${GUEST_NETWORK.prefix4}`,
  gateway4: GUEST_NETWORK.gateway4,
  address6: `${GUEST_NETWORK.guest6}/${GUEST_NETWORK.prefix6}`,
  gateway6: GUEST_NETWORK.gateway6,
  resolver: GUEST_NETWORK.dns4,
}

/** A box that may reach nothing, publishes nothing and is in no network has no card at all. */
export const hasCard = ({ network, ports, networks = [] }: BoxConfig): boolean =>
  network !== 'none' || ports.length > 0 || networks.length > 0

function networkCard(folder: BoxFolder, { id, name, config }: BoxRecord): DeviceDescription | undefined {
  if (!hasCard(config)) return undefined
  const { network, ports, networks = [], bandwidth, pcap } = config
  const home = new Home(resolve(folder.path, '../..'))
  const mac = macOf(id)
  const options: NetworkDescription = {
    policy: network,
    ports,
    guestMac: mac,
    entrance: folder.netSocket,
    networks: networks.map(each => joinNetwork(home, each, { id, name })),
    denialLog: folder.denialLog,
    ...(bandwidth === undefined ? {} : { bandwidth }),
    ...(pcap === undefined ? {} : { pcap }),
  }
  // Plain values: they were read from JSON, or are strings.
  return { kind: 'net', mac, link: { kind: 'user', options: options as unknown as SavedValue } }
}
