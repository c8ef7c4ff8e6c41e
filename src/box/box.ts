/**
 * A box: a Linux micro-VM from an image, with a disk that stays.
 *
 *   created ── start ──> running ── stop ──> stopped ── start ──> running ── ... ── remove
 *
 * Creating one is cheap; it starts when it is first used, in a VMM process of its own. This object is a handle: any
 * number of them, in any number of processes, may stand for the same box.
 */
import { EventEmitter } from 'node:events'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { connectToGuest } from '../virtio/vsock/host-api.ts'
import { AgentClient, type ExecRequest } from './agent/client.ts'
import { AgentFiles } from './agent/files.ts'
import { AGENT_PORT } from './agent/protocol.ts'
import { copyIn, copyOut } from './agent/tree.ts'
import { ControlClient } from './control.ts'
import { BoxError } from './errors.ts'
import { Execution, type ExecutionResult } from './execution.ts'
import { BoxFiles } from './files.ts'
import type { BoxFolder } from './home.ts'
import { isHeld, withLock } from './locks.ts'
import { type BoxOptions, commandLine, resolveConfig } from './options.ts'
import { prepareGuest, prepareImage } from './prepare.ts'
import { type BoxConfig, type BoxRecord, readRecord, writeRecord } from './record.ts'
import { defaultRuntime, type Runtime } from './runtime.ts'
import { startVmm } from './start.ts'
import { discard, find, list, reserve } from './store.ts'
import type { BootStages, BoxExit, BoxMetrics, OpenPort, VmmStatus } from './vmm/launch.ts'

export type BoxState = 'running' | 'stopped'

export interface BoxEvents {
  state: [state: BoxState]
  /** A run of the box ended, whoever ended it. */
  exit: [exit: BoxExit]
}

export interface ExecOptions {
  readonly env?: Readonly<Record<string, string>>
  readonly cwd?: string
  readonly user?: string
  /** The command and all that it started are killed after this long. */
  readonly timeoutMs?: number
}

export interface SpawnOptions extends ExecOptions {
  /** A terminal, of 24 by 80 unless told, instead of pipes. */
  readonly tty?: boolean | { readonly rows: number; readonly columns: number }
}

/** How long a start may wait for another process that works on the same box. */
const OPERATION_WAIT_MS = 120_000
const STOP_POLL_MS = 5

export class Box extends EventEmitter<BoxEvents> {
  readonly files: BoxFiles
  readonly #runtime: Runtime
  readonly #folder: BoxFolder
  readonly #record: BoxRecord
  readonly #named: boolean
  #agent: Promise<AgentClient> | undefined
  #control: ControlClient | undefined
  #stages: BootStages | undefined

  private constructor(runtime: Runtime, folder: BoxFolder, record: BoxRecord) {
    super()
    this.#runtime = runtime
    this.#folder = folder
    this.#record = record
    this.#named = record.name !== record.id
    this.files = new BoxFiles(async () => new AgentFiles(await this.#connected()))
  }

  /** Makes a box. Its image is fetched now if it is not cached; its machine starts when it is first used. */
  static async create(options: BoxOptions = {}, runtime: Runtime = defaultRuntime()): Promise<Box> {
    const wanted = { ...runtime.defaults, ...options }
    // Mistakes are said before anything is downloaded.
    const { diskGib } = resolveConfig(wanted, { env: {}, workdir: '', user: '', entrypoint: [], cmd: [] })
    const { folder, name } = reserve(runtime.home, wanted.name)
    try {
      const image = await prepareImage(runtime, wanted.image ?? 'base', diskGib * 2 ** 30)
      const config = resolveConfig(wanted, image)
      image.createDisk(folder.disk, config.diskGib * 2 ** 30)
      writeRecord(folder, {
        id: folder.id,
        name,
        created: new Date().toISOString(),
        imageId: image.id,
        baseDisk: image.disk,
        imageEntrypoint: image.entrypoint,
        imageCmd: image.cmd,
        config,
      })
    } catch (error) {
      discard(runtime.home, folder, name)
      throw error
    }
    return new Box(runtime, folder, readRecord(folder))
  }

  /** The box of that name or id, running or not. */
  static async get(nameOrId: string, runtime: Runtime = defaultRuntime()): Promise<Box> {
    const folder = find(runtime.home, nameOrId)
    return new Box(runtime, folder, readRecord(folder))
  }

  /** All boxes of the home, oldest first. */
  static async list(runtime: Runtime = defaultRuntime()): Promise<Box[]> {
    return list(runtime.home).map(record => new Box(runtime, runtime.home.box(record.id), record))
  }

  get id(): string {
    return this.#record.id
  }
  get name(): string {
    return this.#record.name
  }
  get created(): Date {
    return new Date(this.#record.created)
  }
  get config(): BoxConfig {
    return this.#record.config
  }
  /** The image's entrypoint with these arguments, or with its own when there are none: what `vitrine run` runs. */
  commandLine(args: readonly string[] = []): readonly string[] {
    return commandLine({ entrypoint: this.#record.imageEntrypoint, cmd: this.#record.imageCmd }, args)
  }
  /** The box's folder in the home. */
  get folder(): BoxFolder {
    return this.#folder
  }
  /** As it is right now, whoever started or stopped it. */
  get state(): BoxState {
    return isHeld(this.#folder.vmmLock) ? 'running' : 'stopped'
  }
  /** How the last run ended; undefined if there was none, or it is running. */
  get lastExit(): BoxExit | undefined {
    if (this.state === 'running') return undefined
    try {
      return JSON.parse(readFileSync(this.#folder.lastExit, 'utf8')) as BoxExit
    } catch {
      return undefined
    }
  }
  /** How long the stages of this handle's last start took. */
  get bootStages(): BootStages | undefined {
    return this.#stages
  }

  /** Starts the box; no effect when it runs. */
  async start(): Promise<void> {
    readRecord(this.#folder) // still there?
    await withLock(this.#folder.operationLock, `box '${this.name}'`, OPERATION_WAIT_MS, async () => {
      if (this.state === 'running') return
      const plan = await prepareGuest(this.#runtime, this.#record, this.#folder)
      const started = await startVmm(this.#folder, plan)
      this.#stages = started.stages
      this.emit('state', 'running')
    })
    await this.#watch()
  }

  /** Runs a command and waits for its end. */
  async exec(command: string, args: readonly string[] = [], options: ExecOptions = {}): Promise<ExecutionResult> {
    const execution = await this.spawn(command, args, options)
    execution.stdin.end()
    return execution.result()
  }

  /** Starts a command and gives it back running, with its streams. */
  async spawn(command: string, args: readonly string[] = [], options: SpawnOptions = {}): Promise<Execution> {
    const { config } = this.#record
    const size = options.tty === true ? { rows: 24, columns: 80 } : options.tty
    const request: ExecRequest = {
      argv: [command, ...args],
      env: { ...config.env, ...options.env },
      cwd: options.cwd ?? config.workdir,
      user: options.user ?? config.user,
      timeoutMs: options.timeoutMs ?? 0,
      ...(size ? { tty: size } : {}),
    }
    return new Execution((await this.#connected()).exec(request))
  }

  /** Copies a file or directory of the host into the box, into `guestPath` where that is a directory. */
  async copyIn(hostPath: string, guestPath: string): Promise<void> {
    const isDirectory = guestPath.endsWith('/') || (await this.#isDirectory(guestPath))
    await copyIn(await this.#connected(), hostPath, guestPath, isDirectory)
  }

  /** Copies a file or directory of the box to the host. */
  async copyOut(guestPath: string, hostPath: string): Promise<void> {
    await copyOut(await this.#connected(), guestPath, hostPath)
  }

  async #isDirectory(path: string): Promise<boolean> {
    return (await this.files.exists(path)) && (await this.files.stat(path)).kind === 'directory'
  }

  /** Stops the box: the guest is asked to end its processes and write everything out. Its disk stays. */
  async stop(options: { graceMs?: number } = {}): Promise<void> {
    const control = await ControlClient.connect(this.#folder.controlSocket)
    if (control) {
      try {
        await control.call('stop', options)
      } catch (error) {
        if (!(error instanceof BoxError && error.code === 'VMM_FAILED')) throw error
      }
      control.close()
    }
    // The lock goes with the process, which is what "stopped" means.
    while (this.state === 'running') await sleep(STOP_POLL_MS)
    this.#disconnect()
    if (this.config.autoRemove) await this.remove()
  }

  /** Removes the box and its disk. One that runs is stopped first if `force` is set. */
  async remove(options: { force?: boolean } = {}): Promise<void> {
    if (this.state === 'running') {
      if (!options.force) {
        throw new BoxError('WRONG_STATE', `box '${this.name}' is running: stop it first, or remove it by force`)
      }
      await this.stop({ graceMs: 0 })
    }
    this.#disconnect()
    discard(this.#runtime.home, this.#folder, this.name)
  }

  /** Figures of the running box. */
  async metrics(): Promise<BoxMetrics> {
    return (await this.#controlled()).call<BoxMetrics>('metrics')
  }

  /** The host ports that lead into the running box, with the numbers that were chosen for them. */
  async ports(): Promise<readonly OpenPort[]> {
    return (await this.#controlled()).call<readonly OpenPort[]>('ports')
  }

  /** The VMM process of the running box. */
  async vmm(): Promise<VmmStatus> {
    return (await this.#controlled()).call<VmmStatus>('status')
  }

  /** Frees this handle's connections; the box itself is not touched. */
  close(): void {
    this.#disconnect()
  }

  /** At the end of an `await using`: the box is stopped and, unless it was given a name, removed. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.state === 'running') await this.stop()
    this.#disconnect()
    if (!this.#named) discard(this.#runtime.home, this.#folder, this.name)
  }

  /** A connection to the agent; starts the box if need be. */
  #connected(): Promise<AgentClient> {
    this.#agent ??= this.#connect().catch((error: Error) => {
      this.#agent = undefined
      throw error
    })
    return this.#agent
  }

  async #connect(): Promise<AgentClient> {
    if (this.state === 'stopped') await this.start()
    else await this.#watch()
    const client = await AgentClient.connect(await connectToGuest(this.#folder.vsockSocket, AGENT_PORT))
    client.onClose = () => {
      this.#agent = undefined
    }
    return client
  }

  async #controlled(): Promise<ControlClient> {
    await this.#watch()
    if (!this.#control) throw new BoxError('WRONG_STATE', `box '${this.name}' is not running: start it first`)
    return this.#control
  }

  /** Listens to the VMM, so that its end is known at once. */
  async #watch(): Promise<void> {
    if (this.#control) return
    const control = await ControlClient.connect(this.#folder.controlSocket)
    if (!control) return
    control.unref()
    this.#control = control
    let exit: BoxExit | undefined
    control.onEvent = (event, data) => {
      if (event === 'exit') exit = data as BoxExit
    }
    control.onClose = () => {
      if (this.#control !== control) return
      this.#control = undefined
      this.emit('state', 'stopped')
      this.emit(
        'exit',
        exit ?? {
          reason: 'vmm-failed',
          message: 'its VMM process was killed',
          exitCode: null,
          at: new Date().toISOString(),
        },
      )
    }
  }

  #disconnect(): void {
    void this.#agent?.then(client => client.close()).catch(() => {})
    this.#agent = undefined
    const control = this.#control
    this.#control = undefined
    control?.close()
  }
}
