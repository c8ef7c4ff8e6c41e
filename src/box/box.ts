/** The handle to a box: what its VMM process, its agent and its folder do for a caller. */
import { EventEmitter } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import type { Duplex } from 'node:stream'
import type { ProcessLock } from '../host/process-lock.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import type { AgentClient, ExecRequest } from './agent/client.ts'
import { AgentFiles } from './agent/files.ts'
import { copyIn, copyOut } from './agent/tree.ts'
import { BoxConnections, type LogEntry } from './connections.ts'
import { ControlClient } from './control.ts'
import { BoxError, rethrowFull } from './errors.ts'
import { type ExecOptions, Execution, type ExecutionResult, type SpawnOptions } from './execution.ts'
import { BoxFiles } from './files.ts'
import type { BoxFolder } from './home.ts'
import { inParallel } from './in-parallel.ts'
import { acquire, withLock } from './locks.ts'
import { BoxNetwork } from './network.ts'
import { checkNetworks } from './networks.ts'
import { canNurse, Nursery } from './nursery.ts'
import { type BoxOptions, commandLine, resolveConfig, withEntrypoint } from './options.ts'
import { isFrozen, readPending, removePending, type SnapshotRef } from './pending.ts'
import { checkUsable, holdImages, prepareGuest, prepareImage } from './prepare.ts'
import { type BoxConfig, type BoxRecord, readRecord, writeRecord } from './record.ts'
import { defaultRuntime, type Runtime } from './runtime.ts'
import {
  boxFrom,
  checkForkCount,
  putBack,
  type RestoreOptions,
  resolveSnapshot,
  type SnapshotSummary,
  snapshotDisk,
  snapshotStore,
  snapshotsOf,
  summaryOf,
} from './snapshots.ts'
import { describeStart, planFor, type StartedFrom, type StartOptions, startedFrom, startVmm } from './start.ts'
import { discard, find, list, reserve } from './store.ts'
import { startFromImage } from './templates.ts'
import type { BootStages, BoxExit, BoxMetrics, LaunchPlan, OpenPort, TakenSnapshot, VmmStatus } from './vmm/launch.ts'

/** 'paused': it goes on from where it was when it is used, from memory or from the disk. */
export type BoxState = 'running' | 'paused' | 'stopped'

/** What a box tells whoever listens. */
export interface BoxEvents {
  /** This handle, or the end of the VMM, changed it. */
  state: [state: BoxState]
  /** A run of the box ended, whoever ended it. */
  exit: [exit: BoxExit]
  /** The guest's console and the output of the box's own command, as they come. Slow listeners may miss some; `vitrine logs` has it all. */
  log: [entry: LogEntry]
}

/** How many branches, and what they are called. */
export interface ForkOptions {
  /** 1 unless told. */
  readonly count?: number
  /** One for each. */
  readonly names?: readonly string[]
  readonly detach?: boolean
  readonly autoRemove?: boolean
}

/** A snapshot that was taken, and what that cost. */
export type SnapshotResult = SnapshotSummary & TakenSnapshot

/** How long a start may wait for another process that works on the same box. */
const OPERATION_WAIT_MS = 120_000

/** Forks that start at a time: more than the cores can serve only get in each other's way. */
const STARTS_AT_A_TIME = availableParallelism() + 2

/** With fewer forks there is nothing to share. */
const FEWEST_NURSED = 2

function releaseAll(locks: ProcessLock[]): void {
  for (const lock of locks.splice(0)) lock.release()
}

/** Whether a call failed because the VMM ended before it answered. */
const hasEnded = (error: unknown): boolean => error instanceof BoxError && error.code === 'VMM_FAILED'

/**
 * A Linux micro-VM from an image, with a disk that stays.
 *
 *     created ── start ──> running ── stop ──> stopped ── start ──> running ── ... ── remove
 *
 * Creating one is cheap; it starts when it is first used, in a VMM process of its own. This object is a handle: any
 * number of them, in any number of processes, may stand for the same box.
 *
 *     await using box = await Box.create({ image: 'debian:12' })
 *     const { stdout } = await box.exec('uname', ['-a'])
 */
export class Box extends EventEmitter<BoxEvents> {
  /** The guest's files. */
  readonly files: BoxFiles
  /** Its network while it runs: ports, rules, flows. */
  readonly network: BoxNetwork
  readonly #runtime: Runtime
  readonly #folder: BoxFolder
  readonly #record: BoxRecord
  readonly #named: boolean
  readonly #connections: BoxConnections
  #stages: BootStages | undefined
  #startedFrom: StartedFrom | undefined

  private constructor(runtime: Runtime, folder: BoxFolder, record: BoxRecord) {
    super()
    this.#runtime = runtime
    this.#folder = folder
    this.#record = record
    this.#named = record.name !== record.id
    this.#connections = new BoxConnections(folder, {
      onLog: entry => this.emit('log', entry),
      onEnd: exit => {
        this.emit('state', this.state)
        this.emit('exit', exit)
      },
      start: () => this.start(),
    })
    this.files = new BoxFiles(async () => new AgentFiles(await this.#connected()))
    this.network = new BoxNetwork(
      async request => (await this.#controlledAwake()).call('network', request),
      folder.netSocket,
    )
  }

  /** Makes a box. Its image is fetched now if it is not cached; its machine starts when it is first used. */
  static async create(options: BoxOptions = {}, runtime: Runtime = defaultRuntime()): Promise<Box> {
    const wanted = { ...runtime.defaults, ...options }
    // Mistakes are said before anything is downloaded.
    checkNetworks(runtime.home, wanted.networks ?? [])
    const { diskGib } = resolveConfig(wanted, { env: {}, workdir: '', user: '', entrypoint: [], cmd: [] })
    const { folder, name, done } = reserve(runtime.home, wanted.name)
    try {
      // Until the record says what the box stands on, nobody removes images.
      using _held = await holdImages(runtime)
      const found = await prepareImage(runtime, wanted.image ?? 'base', diskGib * 2 ** 30)
      const image = withEntrypoint(found, wanted.entrypoint)
      const config = resolveConfig(wanted, image)
      image.createDisk(folder.disk, config.diskGib * 2 ** 30, !config.autoRemove)
      writeFileSync(folder.fresh, '')
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
      rethrowFull(error, `box '${name}' cannot be made`)
    } finally {
      done()
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

  /** Twelve hexadecimal digits, unique in the home. */
  get id(): string {
    return this.#record.id
  }
  /** As it was created; the id where it was given none. */
  get name(): string {
    return this.#record.name
  }
  get created(): Date {
    return new Date(this.#record.created)
  }
  /** What it is, all defaults filled in. */
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
    if (this.#runs) return isFrozen(this.#folder) ? 'paused' : 'running'
    return readPending(this.#folder) ? 'paused' : 'stopped'
  }
  /** Whether it has a VMM process. */
  get #runs(): boolean {
    return this.#connections.hasVmm
  }
  /** How the last run ended; undefined if there was none, or it is running. */
  get lastExit(): BoxExit | undefined {
    if (this.#runs) return undefined
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

  /** What this handle's last start of the box began with. */
  get startedFrom(): StartedFrom | undefined {
    return this.#startedFrom
  }

  /** Starts the box; no effect when it runs. */
  async start(options: StartOptions = {}): Promise<void> {
    readRecord(this.#folder) // still there?
    await withLock(this.#folder.operationLock, `box '${this.name}'`, OPERATION_WAIT_MS, async () => {
      await this.#connections.vmmSettled()
      if (!this.#runs) await this.#launch(options)
    })
    await this.#connections.control()
    if (isFrozen(this.#folder)) await this.resume()
  }

  async #launch(options: StartOptions = {}): Promise<void> {
    const store = snapshotStore(this.#runtime)
    // Until the VMM says what it stands on, nothing is removed.
    using _used = await store.use()
    const prepare = async (): Promise<LaunchPlan> => {
      const plan = await prepareGuest(this.#runtime, this.#record, this.#folder)
      this.#runtime.onProgress({ text: describeStart(plan) })
      this.#startedFrom = startedFrom(plan)
      return planFor(plan, options)
    }
    try {
      const plan = prepare()
      const onRunning = (): void => this.#connections.connectEarly()
      this.#stages = await startVmm(this.#folder, plan, onRunning).catch(async (error: Error) => {
        const { restore } = await plan
        if (restore?.owner !== 'template') throw error
        // A template that cannot be used is no reason not to start: the next one boots, and leaves another.
        rmSync(store.folder.manifest('template', restore.id), { force: true })
        startFromImage(this.#folder, this.#record)
        return startVmm(this.#folder, prepare())
      })
    } finally {
      this.#runtime.onProgress(undefined)
    }
    this.emit('state', 'running')
  }

  /**
   * Saves the box as it is: its processes, memory and disk, or the disk only. A box that runs goes on, after a pause of
   * milliseconds; of one that is stopped there is only the disk.
   */
  async snapshot(name?: string, options: { diskOnly?: boolean } = {}): Promise<SnapshotResult> {
    if (this.state === 'paused' && !this.#runs) await this.start()
    const wanted = name ?? null
    return this.#exclusively(async () => {
      const store = snapshotStore(this.#runtime)
      if (!this.#runs) {
        const started = performance.now()
        const manifest = await snapshotDisk(this.#runtime, this.#folder, readRecord(this.#folder), wanted)
        const totalMs = performance.now() - started
        return { ...summaryOf(manifest), pauseMs: 0, liveMs: 0, totalMs, memoryBytes: 0, rounds: 0 }
      }
      const request = { name: wanted, kind: 'snapshot', diskOnly: options.diskOnly ?? false } as const
      const taken = await (await this.#controlled()).call<TakenSnapshot>('snapshot', request)
      return { ...taken, ...summaryOf(store.find(this.id, taken.id)) }
    })
  }

  /** The box's snapshots, oldest first. */
  async snapshots(): Promise<SnapshotSummary[]> {
    return snapshotsOf(this.#runtime, this.id)
  }

  /** Puts the box back to a snapshot of it, and lets it go on from there; one of the disk only is booted. */
  async rollback(nameOrId: string): Promise<void> {
    await this.#exclusively(async () => {
      const store = snapshotStore(this.#runtime)
      using _used = await store.use()
      const manifest = store.find(this.id, nameOrId)
      await checkUsable(store, manifest)
      await this.#end({ graceMs: 0, keep: true })
      putBack(store, this.#folder, manifest)
      await this.#launch()
    })
    await this.#connections.control()
  }

  /** Makes a new box of a snapshot: an id, `BOX@NAME`, or what `snapshotStore` gives. It goes on when it is first used. */
  static async restore(
    snapshot: SnapshotManifest | string,
    options: RestoreOptions = {},
    runtime: Runtime = defaultRuntime(),
  ): Promise<Box> {
    const store = snapshotStore(runtime)
    using _used = await store.use()
    const manifest = resolveSnapshot(store, snapshot, name => find(runtime.home, name).id)
    await checkUsable(store, manifest)
    const folder = boxFrom(runtime, store, manifest, options)
    return new Box(runtime, folder, readRecord(folder))
  }

  /**
   * Branches the box, running or paused, into `count` more that go on from the same moment, each with a name, a clock and
   * random numbers of its own. They share memory and disk until they write. This one goes on.
   */
  async fork(options: ForkOptions = {}): Promise<Box[]> {
    const { count = 1, names } = options
    checkForkCount(count, names)
    return this.#exclusively(async () => {
      const store = snapshotStore(this.#runtime)
      using _used = await store.use()
      const ref = await this.#forkPoint()
      const manifest = store.find(ref.owner, ref.id)
      const boxes: Box[] = []
      const locks: ProcessLock[] = []
      // It loads its code while the first is made, and starts them as they come.
      const nursery =
        count >= FEWEST_NURSED && canNurse(manifest, this.config.cpus) ? Nursery.open(this.#runtime.home) : undefined
      try {
        for (let i = 0; i < count; i++) {
          const { detach, autoRemove } = options
          const folder = boxFrom(this.#runtime, store, manifest, {
            ...(names ? { name: names[i]! } : {}),
            ...(detach === undefined ? {} : { detach }),
            ...(autoRemove === undefined ? {} : { autoRemove }),
          })
          const box = new Box(this.#runtime, folder, readRecord(folder))
          boxes.push(box)
          if (!nursery) continue
          if (i === 0) nursery.begin(await prepareGuest(this.#runtime, box.#record, folder))
          locks.push(await acquire(folder.operationLock, `box '${box.name}'`, OPERATION_WAIT_MS))
          nursery.add(folder)
        }
        const left = nursery ? await Box.#startedTogether(boxes, nursery) : boxes
        releaseAll(locks)
        await inParallel(left, STARTS_AT_A_TIME, box => box.start())
      } catch (error) {
        releaseAll(locks)
        await nursery?.close()
        for (const box of boxes) await box.remove({ force: true }).catch(() => {})
        throw error
      } finally {
        // What they stand on is theirs now.
        if (manifest.kind === 'fork') rmSync(store.folder.manifest(manifest.owner, manifest.id), { force: true })
      }
      return boxes
    })
  }

  /** Waits for boxes that a nursery starts. Those that have to be started by themselves are left. */
  static async #startedTogether(boxes: readonly Box[], nursery: Nursery): Promise<readonly Box[]> {
    const stages = await nursery.finish()
    const started = boxes.filter(({ id }) => stages.has(id))
    await Promise.all(started.map(box => box.#startedElsewhere(stages.get(box.id)!)))
    return boxes.filter(({ id }) => !stages.has(id))
  }

  async #startedElsewhere(stages: BootStages): Promise<void> {
    this.#stages = stages
    this.emit('state', 'running')
    await this.#connections.control()
  }

  /** The snapshot to branch from: that of a paused box, or a new one. */
  async #forkPoint(): Promise<SnapshotRef> {
    if (!this.#runs) {
      const pending = readPending(this.#folder)
      if (pending) return pending.snapshot
      throw new BoxError('WRONG_STATE', `box '${this.name}' is not running: start it, then fork it`)
    }
    const request = { name: null, kind: 'fork', diskOnly: false } as const
    const { id } = await (await this.#controlled()).call<TakenSnapshot>('snapshot', request)
    return { owner: this.id, id }
  }

  /** Freezes the box. With `release` its memory goes to the disk and its process ends. Any use of the box wakes it up. */
  async pause(options: { release?: boolean } = {}): Promise<void> {
    await this.#exclusively(async () => {
      if (!this.#runs) {
        if (readPending(this.#folder)) return
        throw new BoxError('WRONG_STATE', `box '${this.name}' is not running: there is nothing to pause`)
      }
      try {
        await (await this.#controlled()).call('pause', options)
        if (!options.release) {
          this.emit('state', 'paused')
          return
        }
      } catch (error) {
        // A VMM that has let go of its memory, perhaps because nobody used it, ends before it can answer.
        if (!hasEnded(error)) throw error
      }
      await this.#gone()
      if (!readPending(this.#folder)) {
        throw new BoxError(
          'VMM_FAILED',
          `box '${this.name}' ended while it was being paused: see ${this.#folder.vmmLog}`,
        )
      }
    })
  }

  /** Lets a paused box go on. */
  async resume(): Promise<void> {
    if (!this.#runs) {
      if (!readPending(this.#folder)) {
        throw new BoxError('WRONG_STATE', `box '${this.name}' is stopped, not paused: start it`)
      }
      await this.start()
      return
    }
    try {
      await (await this.#controlled()).call('resume')
    } catch (error) {
      // It was just putting its memory on disk.
      if (!hasEnded(error) || !readPending(this.#folder)) throw error
      await this.#gone()
      await this.start()
      return
    }
    this.emit('state', 'running')
  }

  /** One process at a time changes what a box is. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    readRecord(this.#folder) // still there?
    return withLock(this.#folder.operationLock, `box '${this.name}'`, OPERATION_WAIT_MS, work)
  }

  /** Runs a command and waits for its end. One that fails is no error: look at `exitCode`. One that cannot be started is. */
  async exec(command: string, args: readonly string[] = [], options: ExecOptions = {}): Promise<ExecutionResult> {
    const client = await this.#connected()
    const request = { ...this.#request(command, args, options), noInput: options.input === undefined }
    const execution = new Execution(client.exec(request))
    if (options.input !== undefined) execution.stdin.end(options.input)
    return execution.result(options)
  }

  /** The same for a line of the guest's shell: `box.sh('make 2>&1 | tail')`. */
  sh(script: string, options: ExecOptions = {}): Promise<ExecutionResult> {
    return this.exec('/bin/sh', ['-c', script], options)
  }

  /** Starts a command and gives it back with its streams, which wait for it where the box has to be started first. */
  spawn(command: string, args: readonly string[] = [], options: SpawnOptions = {}): Execution {
    const request = this.#request(command, args, options)
    const agent = this.#connections.openAgent
    return new Execution(
      agent && !isFrozen(this.#folder) ? agent.exec(request) : this.#connected().then(client => client.exec(request)),
    )
  }

  #request(command: string, args: readonly string[], options: SpawnOptions): ExecRequest {
    const { config } = this.#record
    const size = options.tty === true ? { rows: 24, columns: 80 } : options.tty
    return {
      argv: [command, ...args],
      env: { ...config.env, ...options.env },
      cwd: options.cwd ?? config.workdir,
      user: options.user ?? config.user,
      timeoutMs: options.timeoutMs ?? 0,
      ...(size ? { tty: size } : {}),
    }
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
    if (!this.#runs && options.graceMs !== 0 && readPending(this.#folder)?.why === 'pause') {
      // Its processes are asked as well. Where it cannot be woken, its disk is what it was when it was paused.
      await this.start().catch(() => {})
    }
    await this.#end(options)
    // Memory that was kept for going on is of no use to a box that was stopped.
    removePending(this.#folder)
    // As a rule its VMM has done that.
    if (this.config.autoRemove && existsSync(this.#folder.path)) await this.remove()
  }

  async #end(options: { graceMs?: number; keep?: boolean }): Promise<void> {
    const control = await ControlClient.connect(this.#folder.controlSocket)
    if (control) {
      try {
        await control.call('stop', options)
      } catch (error) {
        if (!hasEnded(error)) throw error
      }
      control.close()
    }
    await this.#gone()
  }

  /** Waits until the VMM has ended. Who listens to this handle has heard of it then. */
  async #gone(): Promise<void> {
    await this.#connections.vmmEnded()
    this.#connections.close()
  }

  /** Removes the box and its disk. One that runs is stopped first if `force` is set. */
  async remove(options: { force?: boolean } = {}): Promise<void> {
    if (this.#runs) {
      if (!options.force) {
        throw new BoxError('WRONG_STATE', `box '${this.name}' is running: stop it first, or remove it by force`)
      }
      await this.#end({ graceMs: 0 })
    }
    this.#connections.close()
    discard(this.#runtime.home, this.#folder, this.name)
    await snapshotStore(this.#runtime).removeOwner(this.id)
  }

  /** Figures of the running box. */
  async metrics(): Promise<BoxMetrics> {
    return (await this.#controlledAwake()).call<BoxMetrics>('metrics')
  }

  /** The host ports that lead into the running box, with the numbers that were chosen for them. */
  ports(): Promise<readonly OpenPort[]> {
    return this.network.ports()
  }

  /** A stream to a TCP port of the guest, without any host port; starts the box if need be. */
  async connect(port: number, options: { timeoutMs?: number } = {}): Promise<Duplex> {
    await this.#connected()
    return this.network.connect(port, options)
  }

  /** The VMM process of the running box. */
  async vmm(): Promise<VmmStatus> {
    return (await this.#controlledAwake()).call<VmmStatus>('status')
  }

  /** Frees this handle's connections; the box itself is not touched. */
  close(): void {
    this.#connections.close()
  }

  /** At the end of an `await using`: the box is stopped and, unless it was given a name, removed. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#runs) await this.stop()
    this.#connections.close()
    if (!this.#named) await this.remove()
  }

  /** A connection to the agent; starts the box if need be. */
  async #connected(): Promise<AgentClient> {
    if (this.#connections.hasAgent && isFrozen(this.#folder)) await this.resume()
    return this.#connections.agent(() => this.#awake())
  }

  /** Starts or wakes the box if need be. */
  async #awake(): Promise<void> {
    if (this.state !== 'running') await this.start({ connect: true })
    else await this.#connections.control()
  }

  async #controlled(): Promise<ControlClient> {
    const control = await this.#connections.control()
    if (!control) throw new BoxError('WRONG_STATE', `box '${this.name}' is not running: start it first`)
    return control
  }

  /** One whose memory is on disk has nobody to ask: it is woken. */
  async #controlledAwake(): Promise<ControlClient> {
    if (!this.#runs && readPending(this.#folder)) await this.start()
    return this.#controlled()
  }
}
