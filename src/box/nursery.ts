/** The owner's side of a nursery (nursery.process.ts): the process that the VMM processes of many boxes come from. */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { assetPath } from '../host/assets.ts'
import { forkIsAvailable } from '../host/fork.ts'
import { onLines } from '../host/lines.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { BoxError, type BoxErrorCode } from './errors.ts'
import type { BoxFolder, Home } from './home.ts'
import { EXIT_MS, lastWords } from './start.ts'
import { type BootStages, CHANNEL, type LaunchPlan, type NurseryMessage, type NurseryRequest } from './vmm/launch.ts'
import { NURSERY_NODE_OPTIONS } from './vmm/node-options.ts'
import { fitsOneThread } from './vmm/one-thread.ts'
import { ownEnvironment } from './vmm-process.ts'

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
  readonly #waiting = new Map<string, BoxFolder>()
  #outcome: Promise<ReadonlyMap<string, BootStages>> | undefined
  #complaints = ''

  private constructor(home: Home) {
    const args = [...NURSERY_NODE_OPTIONS, assetPath('nursery.process.cjs'), `${home.boxes}/`]
    this.#process = spawn(process.execPath, args, {
      // What it is told comes by itself: its children listen to the channel, for the end of it, and must not take that in.
      stdio: ['pipe', 'ignore', 'pipe', 'pipe'],
      detached: true,
      cwd: '/',
      env: ownEnvironment(),
    })
    // A pipe of Node's is a socket, and open in both directions.
    this.#channel = this.#process.stdio[CHANNEL] as Socket
    this.#channel.on('error', () => {})
    this.#process.stdin?.on('error', () => {})
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

  /** Tells it what all boxes go on from; it prepares that. */
  begin(launch: LaunchPlan): void {
    this.#outcome = this.#listen()
    this.#outcome.catch(() => {}) // `finish` looks at it
    this.#say({ launch })
  }

  /** Has it start a box, while others are being made. */
  add(folder: BoxFolder): void {
    this.#waiting.set(folder.id, folder)
    this.#say({ box: { path: folder.path, id: folder.id } })
  }

  /**
   * There are no more. Resolves when all that could be started are ready: how long the stages of each took, by id. What is not in there was
   * not begun, and may be started in another way. Unless a box is detached it ends when this process does, because the channel then closes.
   */
  async finish(): Promise<ReadonlyMap<string, BootStages>> {
    this.#say({ end: true })
    const started = await this.#outcome!
    this.#process.stdin?.destroy()
    this.#process.unref()
    this.#channel.unref()
    return started
  }

  #say(request: NurseryRequest): void {
    this.#process.stdin?.write(`${JSON.stringify(request)}\n`)
  }

  /** Gives it up: boxes that are not ready end with it. */
  async close(): Promise<void> {
    this.#process.kill('SIGKILL')
    await this.#ended
    this.#channel.destroy()
  }

  #listen(): Promise<ReadonlyMap<string, BootStages>> {
    const started = new Map<string, BootStages>()
    const waiting = this.#waiting
    let failure: Error | undefined
    return new Promise((resolve, reject) => {
      const fail = (id: string, error: Error): void => {
        if (waiting.delete(id)) failure ??= error
      }
      const done = (): void => {
        endLines()
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
      const endLines = onLines(this.#channel, line => hear(JSON.parse(line) as NurseryMessage))
      // What was said before is heard first.
      void this.#ended.then(how => setTimeout(() => broken(`the nursery ${how}: ${this.#complaints}`), EXIT_MS))
    })
  }
}

function diedEarly(folder: BoxFolder, how?: string): BoxError {
  const ended = `the VMM process ended${how === undefined ? '' : ` (${how})`}`
  return new BoxError('VMM_FAILED', `${ended} before the box was ready: ${lastWords(folder)}`)
}
