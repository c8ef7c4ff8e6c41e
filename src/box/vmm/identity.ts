/** Telling a guest who and when it is: its time, fresh entropy, name and addresses. Done at every start and restore. */
import { randomBytes } from 'node:crypto'
import type { AgentClient } from '../agent/client.ts'
import { Frame, PayloadWriter } from '../agent/protocol.ts'

export interface GuestNetwork {
  /** With prefix length. */
  readonly address4: string
  readonly gateway4: string
  readonly address6: string
  readonly gateway6: string
  readonly resolver: string
  readonly mac: string
}

const SEED_BYTES = 64

/** The host's clock and new random bytes: two guests from one snapshot must agree on the first and not on the second. */
export async function refreshGuest(client: AgentClient): Promise<void> {
  const now = BigInt(Date.now()) * 1_000_000n
  const payload = new PayloadWriter().u64(now).bytes(randomBytes(SEED_BYTES)).finish()
  await client.request(Frame.CLOCK, payload, "setting the guest's clock")
}

export async function nameGuest(client: AgentClient, hostname: string, network: GuestNetwork | null): Promise<void> {
  const payload = new PayloadWriter()
    .string(hostname)
    .string(network?.address4 ?? '')
    .string(network?.gateway4 ?? '')
    .string(network?.address6 ?? '')
    .string(network?.gateway6 ?? '')
    .string(network?.resolver ?? '')
    .string(network?.mac ?? '')
    .finish()
  await client.request(Frame.IDENTITY, payload, "setting the guest's name and addresses")
}

/** Everything that was written is on the disk. */
export async function syncGuest(client: AgentClient): Promise<void> {
  await client.request(Frame.SYNC, Buffer.alloc(0), "writing out the guest's files")
}

/** Makes the root file system as large as the disk. */
export async function growDisk(client: AgentClient): Promise<void> {
  await client.request(Frame.GROW, Buffer.alloc(0), "growing the guest's file system")
}

export interface GuestInfo {
  readonly uptimeS: number
  readonly processes: number
  readonly load: number
  readonly memoryTotal: number
  readonly memoryFree: number
  readonly memoryAvailable: number
  readonly diskTotal: number
  readonly diskFree: number
  readonly execs: { readonly started: number; readonly failed: number; readonly running: number }
  /** Modules that could wait are being loaded. */
  readonly isBooting: boolean
}

export async function guestInfo(client: AgentClient): Promise<GuestInfo> {
  const reader = await client.request(Frame.INFO, Buffer.alloc(0), "asking for the guest's figures")
  const uptimeS = reader.number()
  const processes = reader.u32()
  const load = reader.u32() / 100
  const [memoryTotal, memoryFree, memoryAvailable] = [reader.number(), reader.number(), reader.number()]
  const [diskTotal, diskFree] = [reader.number(), reader.number()]
  const execs = { started: reader.number(), failed: reader.number(), running: reader.number() }
  // A guest of an older snapshot does not say it.
  const isBooting = reader.left >= 4 && reader.u32() !== 0
  return { uptimeS, processes, load, memoryTotal, memoryFree, memoryAvailable, diskTotal, diskFree, execs, isBooting }
}

export async function shutDownGuest(client: AgentClient, how: 'off' | 'reboot'): Promise<void> {
  await client.request(
    Frame.SHUTDOWN,
    new PayloadWriter().u32(how === 'off' ? 0 : 1).finish(),
    'shutting the guest down',
  )
}
