/** The guest's agent, run natively on this host behind a Unix socket. */
import { type ChildProcess, spawn } from 'node:child_process'
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { assetPath } from '../../host/assets.ts'

/** Resolves when it takes connections, which is a moment after its socket has a name. */
export async function startAgent(socketPath: string): Promise<ChildProcess> {
  const agent = spawn(assetPath('guest/init'), ['--agent-unix', socketPath], { stdio: 'inherit' })
  while (!(await takesConnections(socketPath))) {
    if (agent.exitCode !== null || agent.signalCode !== null) throw new Error('the agent ended before it listened')
    await sleep(10)
  }
  return agent
}

function takesConnections(socketPath: string): Promise<boolean> {
  return new Promise(resolve => {
    const socket: Socket = connect(socketPath)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
}
