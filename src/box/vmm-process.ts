/**
 * A box's VMM process, as the process that starts it sees it. It can be started before there is a box: it takes a while until it can be told of one.
 * Loads nothing but what starting takes.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import type { Socket } from 'node:net'
import { assetPath } from '../host/assets.ts'
import { CHANNEL, type LaunchPlan, type OwnerMessage } from './vmm/launch.ts'
import { VMM_NODE_OPTIONS } from './vmm/node-options.ts'

/** What the VMM needs of ours; secrets that stand in an environment are none of its business. */
export function ownEnvironment(): Record<string, string> {
  const kept = /^(PATH|HOME|LANG|LC_ALL|TZ|TMPDIR|NODE_V8_COVERAGE|VITRINE_\w+)$/
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => kept.test(name))) as Record<string, string>
}

export class VmmProcess {
  readonly child: ChildProcess
  readonly channel: Socket

  /**
   * In a session of its own, so that a Ctrl-C at the terminal is ours to interpret. It ends when this process does, because its channel then closes.
   * `home` is where the code that it begins with is kept; the default one, unless told.
   */
  constructor(home?: string) {
    this.child = spawn(process.execPath, [...VMM_NODE_OPTIONS, assetPath('vmm.process.cjs')], {
      stdio: ['ignore', 'ignore', 'ignore', 'pipe'],
      detached: true,
      cwd: '/',
      env: { ...ownEnvironment(), ...(home === undefined ? {} : { VITRINE_HOME: home }) },
    })
    // A pipe of Node's is a socket, and open in both directions.
    this.channel = this.child.stdio[CHANNEL] as Socket
    this.channel.on('error', () => {})
    this.child.on('error', () => {}) // whoever waits for it hears of it
  }

  get isAlive(): boolean {
    return this.child.pid !== undefined && this.child.exitCode === null && this.child.signalCode === null
  }

  #say(message: OwnerMessage): void {
    if (!this.channel.destroyed) this.channel.write(`${JSON.stringify(message)}\n`)
  }

  /** Which box it is for. It writes its log there, and reads what the box is. */
  assign({ path, id }: { readonly path: string; readonly id: string }): void {
    this.#say({ box: { path, id }, owner: process.pid })
  }

  launch(plan: LaunchPlan): void {
    this.#say({ plan })
  }

  /** It does not keep this process alive. */
  unref(): void {
    this.child.unref()
    this.channel.unref()
  }

  async kill(): Promise<void> {
    const ended = new Promise(resolve => this.child.once('exit', resolve))
    if (this.child.kill('SIGKILL')) await ended
    this.channel.destroy()
  }
}

/** Of this process, and not of a bundle: the command line has one that does nothing but this, loaded before the rest. */
const EARLY = Symbol.for('vitrine.early-vmm')
const shared = globalThis as { [EARLY]?: VmmProcess | undefined }

/** Starts one for the next box of this process, whichever that is. */
export function startVmmEarly(): void {
  shared[EARLY] ??= new VmmProcess()
  shared[EARLY].unref()
}

/** That one, if it has not failed, or a new one for a box of `home`. */
export function takeVmmProcess(home: string): VmmProcess {
  const early = shared[EARLY]
  const taken = early?.isAlive ? early : new VmmProcess(home)
  shared[EARLY] = undefined
  taken.child.ref()
  taken.channel.ref()
  return taken
}
