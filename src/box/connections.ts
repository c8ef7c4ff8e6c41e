/** A handle's connections to a box that runs: to the control socket of its VMM, and to the agent in its guest. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { AgentClient } from './agent/client.ts'
import { connectAgent } from './agent/connect.ts'
import { ControlClient } from './control.ts'
import type { BoxFolder } from './home.ts'
import { isHeld } from './locks.ts'
import { readPending } from './pending.ts'
import type { BoxExit, VmmStatus } from './vmm/launch.ts'

const POLL_MS = 1
const LOCK_GONE_MS = 5000

/** What the guest's console and the box's own command print. */
export interface LogEntry {
  readonly stream: 'console' | 'output'
  readonly text: string
}

/** Who hears of what comes without being asked for, and who starts the box. */
export interface ConnectionOwner {
  onLog(entry: LogEntry): void
  /** The VMM has ended, and its lock is free. */
  onEnd(exit: BoxExit): void
  start(): Promise<void>
}

export class BoxConnections {
  readonly #folder: BoxFolder
  readonly #owner: ConnectionOwner
  #agent: Promise<AgentClient> | undefined
  /** One that was begun while the guest became ready; undefined: it came to nothing. */
  #early: Promise<AgentClient | undefined> | undefined
  /** The agent, once it is there. */
  #client: AgentClient | undefined
  #control: ControlClient | undefined
  /** Resolves when the owner has been told that the VMM that `#control` leads to has ended. */
  #endTold: Promise<void> | undefined

  constructor(folder: BoxFolder, owner: ConnectionOwner) {
    this.#folder = folder
    this.#owner = owner
  }

  /** Whether the box has a VMM process: it holds the lock as long as it lives. */
  get hasVmm(): boolean {
    return isHeld(this.#folder.vmmLock)
  }

  /** Whether the agent was asked for; it may not be there yet. */
  get hasAgent(): boolean {
    return this.#agent !== undefined
  }

  /** The agent, if it can be talked to at once. */
  get openAgent(): AgentClient | undefined {
    return this.#client?.isOpen ? this.#client : undefined
  }

  /** The agent of a box that `awake` starts or wakes if need be. */
  agent(awake: () => Promise<void>): Promise<AgentClient> {
    this.#agent ??= awake()
      .then(() => this.#connect())
      .catch((error: Error) => {
        this.#agent = undefined
        throw error
      })
    return this.#agent
  }

  /** Connects while the guest becomes ready, for who uses it as soon as it is. */
  connectEarly(): void {
    this.#early = connectAgent(this.#folder.vsockSocket)
      .then(async agent => {
        await agent.answered()
        return agent
      })
      .catch(() => undefined)
  }

  async #connect(): Promise<AgentClient> {
    const early = await this.#early
    this.#early = undefined
    const client = early?.isOpen ? early : await this.#open()
    this.#client = client
    client.onClose = () => {
      this.#agent = undefined
    }
    return client
  }

  async #open(): Promise<AgentClient> {
    const open = async (): Promise<AgentClient> => {
      const agent = await connectAgent(this.#folder.vsockSocket)
      await agent.answered()
      return agent
    }
    return open().catch(async (error: Error) => {
      // It was just ending, or being put aside because nobody used it; or it is starting, and not there yet.
      const vmm = await this.#askVmm()
      if (readPending(this.#folder) !== undefined || vmm?.isEnding) await this.#vmmEndedOrReplaced()
      else if (vmm?.isReady) throw error
      else await this.vmmSettled()
      await this.#owner.start()
      return open()
    })
  }

  /** How far the VMM is; undefined: it does not listen, because it has not begun to or does no longer. */
  async #askVmm(): Promise<Pick<VmmStatus, 'isReady' | 'isEnding'> | undefined> {
    const control = await ControlClient.connect(this.#folder.controlSocket)
    if (!control) return undefined
    try {
      return await control.call<VmmStatus>('status')
    } catch {
      return { isReady: false, isEnding: true }
    } finally {
      control.close()
    }
  }

  /** The VMM's control, if there is a VMM; it is listened to from then on, so that its end is known at once. */
  async control(): Promise<ControlClient | undefined> {
    if (this.#control) return this.#control
    const control = await ControlClient.connect(this.#folder.controlSocket)
    if (!control) return undefined
    control.unref()
    this.#control = control
    let exit: BoxExit | undefined
    control.onEvent = (event, data) => {
      if (event === 'exit') exit = data as BoxExit
      else if (event === 'log') this.#owner.onLog(data as LogEntry)
    }
    this.#endTold = new Promise(told => {
      control.onClose = () => this.#onVmmEnd(control, exit).finally(told)
    })
    return control
  }

  async #onVmmEnd(control: ControlClient, exit: BoxExit | undefined): Promise<void> {
    if (this.#control !== control) return
    this.#control = undefined
    // Who hears of the end may remove or start the box: the VMM's lock goes a moment after its socket.
    for (let waited = 0; this.hasVmm && waited < LOCK_GONE_MS; waited += POLL_MS) await sleep(POLL_MS)
    const killed = { reason: 'vmm-failed', message: 'its VMM process was killed', exitCode: null } as const
    this.#owner.onEnd(exit ?? { ...killed, at: new Date().toISOString() })
  }

  /**
   * Waits until there is no VMM, or one whose guest is ready, or which ends. Whoever started one that is neither may have been killed, and it goes
   * on without them.
   */
  async vmmSettled(): Promise<void> {
    while (this.hasVmm) {
      const vmm = await this.#askVmm()
      if (vmm?.isReady || vmm?.isEnding) break
      await sleep(POLL_MS)
    }
    await this.control()
  }

  /** Waits until the VMM has ended; or until there is one that goes on, which another process has started meanwhile from the snapshot that the box waits at. */
  async #vmmEndedOrReplaced(): Promise<void> {
    while (this.hasVmm) {
      if (readPending(this.#folder) === undefined && (await this.#askVmm())?.isEnding === false) return
      await sleep(POLL_MS)
    }
    await this.vmmEnded()
  }

  /** Waits until the VMM has ended, which is when its lock is free, and the owner has been told. */
  async vmmEnded(): Promise<void> {
    while (this.hasVmm) await sleep(POLL_MS)
    this.#control?.ref()
    await this.#endTold
  }

  close(): void {
    void this.#early?.then(client => client?.close())
    this.#early = undefined
    void this.#agent?.then(client => client.close()).catch(() => {})
    this.#agent = undefined
    const control = this.#control
    this.#control = undefined
    control?.close()
  }
}
