/** From a box's vsock device to its agent. */
import { connectToGuest } from '../../virtio/vsock/host-api.ts'
import { AgentClient } from './client.ts'
import { AGENT_PORT } from './protocol.ts'

/** The greeting goes along with the request for a connection: a turn of the guest less to wait for. Whoever has to know waits until it is `answered`. */
export async function connectAgent(vsockSocket: string): Promise<AgentClient> {
  return AgentClient.greeted(await connectToGuest(vsockSocket, AGENT_PORT, { first: AgentClient.greeting }))
}
