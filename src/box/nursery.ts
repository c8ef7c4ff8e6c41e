/** The owner's side of a nursery (nursery.process.ts): the process that the VMM processes of many boxes come from. */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { createInterface } from 'node:readline'
import { assetPath } from '../host/assets.ts'
import { forkIsAvailable } from '../host/fork.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { BoxError, type BoxErrorCode } from './errors.ts'
import type { BoxFolder, Home } from './home.ts'
import { EXIT_MS, lastWords } from './start.ts'
import type { BootStages, LaunchPlan, NurseryMessage, NurseryPlan } from './vmm/launch.ts'
import { NURSERY_NODE_OPTIONS } from './vmm/node-options.ts'
import { fitsOneThread } from './vmm/one-thread.ts'
import { ownEnvironment } from './vmm-process.ts'

const CHANNEL = 3
const LONGEST_COMPLAINT = 10_000

/**
 * Whether boxes that go on from one snapshot can come from a nursery: only one thread goes on in a forked process. As process 1 of a container we would
 * be the one that the kernel gives orphans to, and collect none of them.
 */
export const canNurse = ({ machine }: SnapshotManifest, cpus: number): boolean =>
  machine !== null && fitsOneThread(machine.accelerator, cpus) && forkIsAvailable() && process.pid !== 1

export class Nursery {
  readonly #process: ChildProcess
  readonly #channel: Socket
  /** Resolves when its process has ended, or could not be started: how. */
  readonly #ended: Promise<string>
  #complaints = ''

  private constructor(home: Home) {
    const args = [...NURSERY_NODE_OPTIONS, assetPath('nursery.process.cjs'), `${home.boxes}/`]
    this.#process = spawn(process.execPath, args, {
      stdio: ['ignore', 'ignore', 'pipe', 'pipe'],
      detached: true,
      cwd: '/',
      env: ownEnvironment(),
    })
    // A pipe of Node's is a socket, and open in both directions.
    this.#channel = this.#process.stdio[CHANNEL] as Socket
    this.#channel.on('error', () => {})
    this.#ended = new Promise(resolve => {
      this.#process.once('error', error => resolve(`cannot be started: ${error.message}`))
      this.#process.once('exit', (code, signal) => resolve(`ended (${signal ?? `exit status ${code}`})`))
    })
    this.#process.stderr?.setEncoding('utf8').on('data', (text: string) => {
      if (this.#complaints.length < LONGEST_COMPLAINT) this.#complaints += text
    })
  }

  /** Starts the process; it loads its code while the plan is made. */
  static open(home: Home): Nursery {
    return new Nursery(home)
  }

  /**
   * Starts the boxes, and resolves when all that could be started are ready: how long the stages of each took, by id. What is not in there was
   * not begun, and may be started in another way. Unless a box is detached it ends when this process does, because the channel then closes.
   */
  async start(launch: LaunchPlan, folders: readonly BoxFolder[]): Promise<ReadonlyMap<string, BootStages>> {
    const plan: NurseryPlan = { launch, boxes: folders.map(({ path, id }) => ({ path, id })) }
    try {
      const started = await this.#started(plan, folders)
      this.#process.unref()
      this.#channel.unref()
      return started
    } catch (error) {
      await this.close()
      throw error
    }
  }

  /** Gives it up: boxes that are not ready end with it. */
  async close(): Promise<void> {
    this.#process.kill('SIGKILL')
    await this.#ended
    this.#channel.destroy()
  }

  #started({ launch, boxes }: NurseryPlan, folders: readonly BoxFolder[]): Promise<ReadonlyMap<string, BootStages>> {
    const started = new Map<string, BootStages>()
    const waiting = new Map(folders.map(folder => [folder.id, folder]))
    let failure: Error | undefined
    return new Promise((resolve, reject) => {
      const fail = (id: string, error: Error): void => {
        if (waiting.delete(id)) failure ??= error
      }
      const done = (): void => {
        lines.close()
        // One that died just before the nursery looked.
        for (const [id, folder] of [...waiting]) fail(id, diedEarly(folder))
        if (failure) reject(failure)
        else resolve(started)
      }
      // It took those with it that were not ready, and perhaps some that had just said that they are.
      const broken = (why: string): void => {
        failure ??= new BoxError('VMM_FAILED', why)
        done()
      }
      const hear = (message: NurseryMessage): void => {
        switch (message.type) {
          case 'ready':
            waiting.delete(message.box)
            started.set(message.box, message.stages)
            break
          case 'failed':
            fail(message.box, new BoxError(message.code as BoxErrorCode, message.message))
            break
          case 'ended': {
            const folder = waiting.get(message.box)
            if (!folder) break
            fail(message.box, diedEarly(folder, message.how))
            break
          }
          case 'all-failed':
            for (const id of [...waiting.keys()]) fail(id, new BoxError(message.code as BoxErrorCode, message.message))
            break
          case 'unable':
            for (const id of message.boxes) waiting.delete(id)
            break
          case 'done':
            done()
        }
      }
      const lines = createInterface({ input: this.#channel })
        .on('line', line => hear(JSON.parse(line) as NurseryMessage))
        .on('error', () => {}) // its process ended: see below
      // What was said before is heard first.
      void this.#ended.then(how => setTimeout(() => broken(`the nursery ${how}: ${this.#complaints}`), EXIT_MS))
      this.#channel.write(`${JSON.stringify({ launch, boxes })}\n`)
    })
  }
}

function diedEarly(folder: BoxFolder, how?: string): BoxError {
  const ended = `the VMM process ended${how === undefined ? '' : ` (${how})`}`
  return new BoxError('VMM_FAILED', `${ended} before the box was ready: ${lastWords(folder)}`)
}
