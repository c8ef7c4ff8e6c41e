/** From a box's vsock device to its agent. */
import { connectToGuest } from '../../virtio/vsock/host-api.ts'
import { AgentClient } from './client.ts'
import { AGENT_PORT } from './protocol.ts'

/** The greeting goes along with the request for a connection, and what is asked may follow before it is answered: two turns of the guest less to wait for. */
export async function connectAgent(vsockSocket: string): Promise<AgentClient> {
  return AgentClient.greeted(await connectToGuest(vsockSocket, AGENT_PORT, { first: AgentClient.greeting }))
}
