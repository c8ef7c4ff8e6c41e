/**
 * A running box, inside its VMM process: the machine, the agent's connection, the rules of when it ends.
 *
 *   boot ──> agent answers ──> ready ──> (serving control requests) ──> ending ──> exit.json, end of the process
 */
import { closeSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { processAge } from '../../host/fork.ts'
import { removeFile } from '../../host/remove.ts'
import { Machine } from '../../machine/machine.ts'
import { describeExit, formatDump, type MachineExit } from '../../machine/machine-events.ts'
import type { SnapshotManifest } from '../../snapshot/manifest.ts'
import { SnapshotStore } from '../../snapshot/store.ts'
import type { SavedValue } from '../../virtio/device.ts'
import type { AgentClient } from '../agent/client.ts'
import { connectAgent } from '../agent/connect.ts'
import { buildId } from '../build-id.ts'
import { BoxError } from '../errors.ts'
import { toExit } from '../execution.ts'
import type { BoxFolder } from '../home.ts'
import { removePending, writePending } from '../pending.ts'
import type { BoxRecord } from '../record.ts'
import { ConsoleLog } from './console-log.ts'
import { type BoxDevices, boxDevices } from './devices.ts'
import { growDisk, guestInfo, nameGuest, refreshGuest, shutDownGuest, syncGuest } from './identity.ts'
import type { BootStages, BoxExit, BoxMetrics, LaunchPlan, SnapshotRequest, TakenSnapshot } from './launch.ts'
import { BoxLimits } from './limits.ts'
import { type Placement, placementFor } from './placement.ts'
import { residentMemory } from './resident.ts'
import { type MappedMachine, mapSaved } from './restored-memory.ts'
import { type SnapshotParts, VmmSnapshots } from './snapshots.ts'

/** A guest that boots on the software CPU of a slow machine takes its time; one that says nothing for this long is stuck. */
const SILENCE_LIMIT_MS = 60_000
/** One that talks, but whose agent never answers, does not become ready either. */
const READY_LIMIT_MS = 10 * 60_000
const AGENT_RETRY_MS = 10
const LIMIT_CHECK_MS = 500
const STOP_GRACE_MS = 15_000
/** How long a snapshot with memory waits for the guest's files to be written. */
const SYNC_MS = 1000
/** And one that the box may never go on from: `stop` drops it where it cannot be woken. */
const RELEASE_SYNC_MS = 5000
/** How long a template waits for its guest to have loaded the last of its modules. */
const BOOTED_MS = 5000
/** How often a box whose command has ended looks whether others still use it. */
const USE_CHECK_MS = 100

interface VmmParts extends SnapshotParts {
  readonly processMs: number
}

export class Vmm {
  readonly record: BoxRecord
  /** Hears what the guest's console says, beside the log. */
  onConsole: (data: Uint8Array) => void = () => {}
  readonly #folder: BoxFolder
  readonly #machine: Machine
  readonly #devices: BoxDevices
  readonly #store: SnapshotStore
  readonly #snapshots: VmmSnapshots
  readonly #limits: BoxLimits
  readonly #plan: LaunchPlan
  readonly #console: ConsoleLog
  readonly #stages: { -readonly [Stage in keyof BootStages]: number }
  readonly #ended: Promise<BoxExit>
  #resolveEnded!: (exit: BoxExit) => void
  #agent: AgentClient | undefined
  #lastOutput = Date.now()
  #ending: Pick<BoxExit, 'reason' | 'message' | 'exitCode'> | undefined
  /** Its user paused it: not the pause of a snapshot. */
  #frozen = false
  #releasing: Promise<void> | undefined

  private constructor(parts: VmmParts) {
    const { folder, machine } = parts
    this.#folder = folder
    this.record = parts.record
    this.#plan = parts.plan
    this.#machine = machine
    this.#devices = parts.devices
    this.#store = parts.store
    this.#snapshots = new VmmSnapshots(parts)
    this.#limits = new BoxLimits({
      config: this.record.config,
      // One connection is our own. A guest that stands still serves nobody, and cannot say that a connection has ended.
      isUsed: async () => !this.#frozen && (await this.#devices.openConnections()) > 1,
      isFrozen: () => this.#frozen,
      release: () => this.release(),
      stop: why => this.stop(why),
    })
    this.#console = new ConsoleLog(folder.consoleLog)
    this.#stages = { processMs: parts.processMs, machineMs: sinceStart(), runningMs: 0, kernelMs: 0, readyMs: 0 }
    this.#ended = new Promise(resolve => {
      this.#resolveEnded = resolve
    })
    machine.on('console', data => {
      this.#lastOutput = Date.now()
      if (this.#stages.kernelMs === 0) this.#stages.kernelMs = sinceStart()
      this.#console.write(data)
      this.onConsole(data)
    })
    machine.once('exit', exit => void this.#onMachineExit(exit))
  }

  /** Makes the machine of a box and lets it boot, or go on from where it was saved: `mapped`, where that has been opened already. */
  static async start(folder: BoxFolder, record: BoxRecord, plan: LaunchPlan, mapped?: MappedMachine): Promise<Vmm> {
    const processMs = sinceStart()
    const { config } = record
    // Threads, where there are to be any, start while memory is prepared.
    const placement = placementFor(plan, config.cpus)
    const devices = boxDevices(folder, record, placement)
    const store = new SnapshotStore(resolve(folder.path, '../..'))
    store.folder.prepare()
    const restored = plan.restore && (mapped ?? (await mapSaved(store, plan.restore, plan.accel)))
    const machine = await Machine.create({
      ...(restored
        ? { memory: restored.memory }
        : {
            kernel: { path: plan.kernel, immutable: plan.kernelIsOurs === true },
            initrd: readFileSync(plan.initrd),
            cmdline: [
              'console=ttyS0',
              'quiet',
              'panic=-1',
              'vitrine.root=/dev/vda',
              'vitrine.mode=agent',
              ...plan.kernelArguments,
            ].join(' '),
            memoryMib: config.memoryMib,
          }),
      cpus: config.cpus,
      accel: plan.accel,
      ...{ devices: devices.all, threads: placement.vcpus },
    })
    const vmm = new Vmm({ plan, store, folder, record, machine, devices, restored, processMs })
    for (const path of [folder.frozen, folder.fresh]) if (existsSync(path)) removeFile(path)
    if (restored) {
      await machine.restore(restored.state)
      adoptSavedCode(machine, store, restored.manifest)
      store.hold(folder.path, restored.image.layerFiles)
      // From here on the disk changes, and the snapshot's memory is of another moment.
      removePending(folder)
      machine.newGeneration()
      await machine.resume()
      const { kind, owner, id } = restored.manifest
      // What a paused box was kept in is used up: its memory is held by what runs now.
      if (kind === 'pause' && owner === record.id) removeFile(store.folder.manifest(owner, id))
    } else {
      store.hold(folder.path, [])
      removePending(folder)
      machine.start()
    }
    devices.disk.whenBusy(() => void vmm.#relieve(placement))
    vmm.#stages.runningMs = sinceStart()
    return vmm
  }

  /** A disk that keeps the guest waiting works beside it from now on. */
  async #relieve({ away }: Placement): Promise<void> {
    if (!away) return
    try {
      const thread = await away()
      await this.#snapshots.inTurn(async () => {
        if (this.#machine.phase !== 'running') {
          // Nobody lives there, and it ends with its last device.
          thread.host.reserve()
          await thread.host.release()
          return
        }
        await this.#machine.pause()
        await this.#devices.moveDisk(thread)
        await this.#machine.resume()
        process.stderr.write('the disk kept the guest waiting: it has a thread of its own now\n')
      })
    } catch (error) {
      // Its disk is on neither side.
      const message = `its disk could not be given a thread: ${(error as Error).message}`
      await this.stop({ reason: 'vmm-failed', message, exitCode: null }, 0)
    }
  }

  get stages(): BootStages {
    return this.#stages
  }

  get isEnding(): boolean {
    return this.#ending !== undefined || this.#machine.exit !== undefined
  }

  /** Resolves when the machine has ended and everything of it is gone. */
  get ended(): Promise<BoxExit> {
    return this.#ended
  }

  /** Waits for the guest's agent and tells the guest who it is. */
  async becomeReady(silenceMs: number = SILENCE_LIMIT_MS): Promise<void> {
    const agent = await this.#connectAgent(silenceMs)
    this.#agent = agent
    await this.#introduce(agent)
    // The kernel grows no file system that has met an error, as one on a full disk has; it is of use all the same.
    if (!this.#plan.restore) {
      await growDisk(agent).catch((error: Error) => process.stderr.write(`${error.message}\n`))
    }
    this.#stages.readyMs = sinceStart()
    this.#limits.watch()
  }

  /** Frames go one after the other, and are answered together. */
  async #introduce(agent: AgentClient): Promise<void> {
    await Promise.all([refreshGuest(agent), nameGuest(agent, this.record.name, this.#devices.network)])
    await this.#devices.askNetwork?.({ do: 'named' })
  }

  /**
   * Takes a snapshot. The guest writes its files out first: a disk alone needs that; one that is kept with the memory will be compared with
   * others, but does not wait for long.
   */
  async snapshot(request: SnapshotRequest): Promise<TakenSnapshot> {
    if (request.kind === 'snapshot') {
      if (!request.diskOnly) await this.#written(SYNC_MS)
      else if (this.#agent && this.#machine.phase === 'running') await syncGuest(this.#agent)
    }
    return this.#snapshots.take(request)
  }

  /** Leaves a snapshot of the guest as it is now for others to start from. Resolves when the guest runs again. */
  async leaveTemplate(key: string): Promise<void> {
    await this.#booted()
    await this.#rehearse()
    await new Promise<void>(live => {
      this.#snapshots
        .take({ name: null, kind: 'template', key, onLive: live })
        .catch((error: Error) => process.stderr.write(`no template was left: ${error.message}\n`))
        .finally(live)
    })
  }

  /** Waits for what the guest still does in the background: every one that goes on from here would do it again. */
  async #booted(): Promise<void> {
    for (const end = Date.now() + BOOTED_MS; Date.now() < end; await sleep(AGENT_RETRY_MS))
      // One that cannot say it is not waited for: a template is no reason not to start.
      if (!(await guestInfo(this.#agent!).catch(() => undefined))?.isBooting) return
  }

  /**
   * A command like those that will come, looked for as they are, so that a guest that goes on from the template has code and directories at hand; an image may
   * have no such command.
   */
  async #rehearse(): Promise<void> {
    const { env, workdir, user } = this.record.config
    const process = this.#agent!.exec({ argv: ['true'], env, cwd: workdir, user, noInput: true })
    for (const stream of [process.stdout, process.stderr]) stream.resume()
    await process.exit.catch(() => {})
  }

  /** The guest stands still until `resume`; its memory stays. */
  async pause(): Promise<void> {
    if (this.#releasing) return this.#releasing
    await this.#snapshots.inTurn(async () => {
      await this.#machine.pause()
      this.#frozen = true
      writeFileSync(this.#folder.frozen, '')
    })
  }

  async resume(): Promise<void> {
    await this.#releasing
    if (this.#ending) throw new BoxError('VMM_FAILED', `box '${this.record.name}' is ending: ${this.#ending.message}`)
    await this.#snapshots.inTurn(async () => {
      this.#frozen = false
      removeFile(this.#folder.frozen)
      if (this.#machine.phase === 'paused') await this.#goOn()
    })
  }

  async #goOn(): Promise<void> {
    await this.#machine.resume()
    // Its clock has stood still too.
    if (this.#agent) await refreshGuest(this.#agent)
  }

  /** Saves memory to the disk and ends this process; the box's next use goes on from there. When that fails the box is as it was. */
  release(): Promise<void> {
    this.#releasing ??= this.#release().finally(() => {
      this.#releasing = undefined
    })
    return this.#releasing
  }

  async #release(): Promise<void> {
    // Until it is said that the box goes on from it, nobody may take the snapshot for a left-over.
    using _used = await this.#store.use()
    if (!this.#frozen) await this.#written(RELEASE_SYNC_MS)
    const owner = this.record.id
    let id: string | undefined
    try {
      ;({ id } = await this.#snapshots.take({ name: null, kind: 'pause', stay: true }))
      if (!this.#ending) writePending(this.#folder, { snapshot: { owner, id }, why: 'pause' })
    } catch (error) {
      if (id !== undefined) this.#store.drop(owner, id)
      if (!this.#frozen && this.#machine.phase === 'paused') await this.#goOn()
      throw error
    }
    removeFile(this.#folder.frozen)
    await this.#end({ reason: 'paused', message: 'it was paused, and its memory released', exitCode: null }, 0)
  }

  /** The guest writes its files out, if it does so in time. */
  async #written(withinMs: number): Promise<void> {
    if (!this.#agent || this.#machine.phase !== 'running') return
    const written = syncGuest(this.#agent).catch(() => {})
    await Promise.race([written, sleep(withinMs, undefined, { ref: false })])
  }

  /** Runs the box's own command, if it has one; when it ends the box stops, too. */
  runCommand(output: (chunk: Buffer) => void): void {
    const { command, env, workdir, user } = this.record.config
    if (!command || !this.#agent) return
    const process = this.#agent.exec({ argv: command, env, cwd: workdir, user })
    process.stdin.end()
    process.stdout.on('data', output)
    process.stderr.on('data', output)
    process.exit.then(
      exit => this.#commandEnded('its command ended', toExit(exit).exitCode),
      (error: Error) => {
        output(Buffer.from(`${error.message}\n`))
        return this.#commandEnded(error.message, 127)
      },
    )
  }

  /** Whoever runs something else in the box, perhaps having started it for that, is not cut off: it stops after them. */
  async #commandEnded(message: string, exitCode: number | null): Promise<void> {
    const isUsed = async (agent: AgentClient): Promise<boolean> =>
      this.#machine.phase === 'paused' || (await guestInfo(agent)).execs.running > 0
    // An agent that is gone has nobody to serve.
    while (this.#agent && !this.#machine.exit && (await isUsed(this.#agent).catch(() => false)))
      await sleep(USE_CHECK_MS)
    await this.stop({ reason: 'command-ended', message, exitCode })
  }

  async #connectAgent(silenceMs: number): Promise<AgentClient> {
    let failure: unknown
    while (!this.#machine.exit) {
      try {
        if (existsSync(this.#folder.vsockSocket)) return await this.#agentOrGivenUp(silenceMs)
      } catch (error) {
        if (error instanceof BoxError) throw error
        failure = error
      }
      const reason = this.#whyGivenUp(silenceMs)
      if (reason) throw this.#notReady(reason, failure)
      await sleep(AGENT_RETRY_MS)
    }
    throw new BoxError(
      'GUEST_NOT_READY',
      `the guest of box '${this.record.name}' ended while it booted: ${describeExit(this.#machine.exit)}. 'vitrine logs --console ${this.record.name}' shows its console`,
    )
  }

  /** A guest that has no driver for vsock leaves a connection open for ever, so the limits are looked at while it is. */
  async #agentOrGivenUp(silenceMs: number): Promise<AgentClient> {
    let timer: NodeJS.Timeout | undefined
    const givenUp = new Promise<never>((_resolve, reject) => {
      timer = setInterval(() => {
        const reason = this.#machine.exit ? 'it ended' : this.#whyGivenUp(silenceMs)
        if (reason) reject(this.#notReady(reason))
      }, LIMIT_CHECK_MS)
    })
    try {
      const connected = connectAgent(this.#folder.vsockSocket).then(async agent => {
        // One that boots may have much to do before it looks; in one that goes on, the end of its old connections may take this one along.
        await agent.answered()
        return agent
      })
      connected.catch(() => {})
      return await Promise.race([connected, givenUp])
    } finally {
      clearInterval(timer)
    }
  }

  #whyGivenUp(silenceMs: number): string | undefined {
    if (Date.now() - this.#lastOutput > silenceMs) return `nothing on its console for ${silenceMs / 1000} s`
    return sinceStart() > READY_LIMIT_MS ? `its agent did not answer within ${READY_LIMIT_MS / 1000} s` : undefined
  }

  #notReady(reason: string, cause?: unknown): BoxError {
    return new BoxError(
      'GUEST_NOT_READY',
      `the guest of box '${this.record.name}' did not become ready: ${reason}. 'vitrine logs --console ${this.record.name}' shows how far it came`,
      { cause },
    )
  }

  /** Ends the box: the guest is asked first, and stopped where it is when it does not answer in time. */
  async stop(why: Pick<BoxExit, 'reason' | 'message' | 'exitCode'>, graceMs: number = STOP_GRACE_MS): Promise<void> {
    // One whose memory is being saved ends by itself then.
    if (graceMs > 0) await this.#releasing?.catch(() => {})
    await this.#end(why, graceMs)
  }

  async #end(why: Pick<BoxExit, 'reason' | 'message' | 'exitCode'>, graceMs: number): Promise<void> {
    if (!this.#ending) {
      this.#ending = why
      this.#limits.clear()
      if (graceMs > 0) {
        const asked = this.#shutDown()
        asked.catch(() => {})
        await Promise.race([asked, sleep(graceMs, undefined, { ref: false })]).catch(() => {})
      }
      await this.#machine.stop()
    }
    await this.#ended
  }

  /** A guest that its user paused goes on for it: what it has not written out yet would be lost. */
  async #shutDown(): Promise<void> {
    if (!this.#agent) return
    if (this.#frozen) await this.#snapshots.inTurn(() => this.#machine.resume())
    if (this.#machine.phase !== 'running') return
    await shutDownGuest(this.#agent, 'off')
    await this.#machine.ended()
  }

  async #onMachineExit(exit: MachineExit): Promise<void> {
    this.#agent?.close()
    await this.#snapshots.settled()
    const crashed = exit.reason === 'triple-fault' || exit.reason === 'internal-error'
    if (crashed && exit.dump) this.#console.write(Buffer.from(`\n${describeExit(exit)}\n${formatDump(exit.dump)}\n`))
    await this.#machine.close()
    this.#snapshots.close()
    removeFile(this.#folder.frozen)
    this.#console.close()
    const why = this.#ending ?? {
      reason: crashed ? 'guest-crashed' : 'powered-off',
      message: describeExit(exit),
      exitCode: null,
    }
    const end: BoxExit = { ...why, at: new Date().toISOString() }
    try {
      writeFileSync(this.#folder.lastExit, `${JSON.stringify(end)}\n`)
    } catch (error) {
      // A full disk, or a home that is gone: who listens is told all the same.
      process.stderr.write(`how it ended (${end.reason}) cannot be kept: ${(error as Error).message}\n`)
      removeFile(this.#folder.lastExit)
    }
    this.#resolveEnded(end)
  }

  /** A change to the network, or a question about it: `NetworkRequest` of src/net/control.ts. */
  async askNetwork(request: unknown): Promise<unknown> {
    const { askNetwork } = this.#devices
    // Plain values: the request came as JSON.
    if (askNetwork) return askNetwork(request as SavedValue)
    if ((request as { do?: unknown } | null)?.do === 'ports') return []
    throw new BoxError(
      'WRONG_STATE',
      `box '${this.record.name}' has no network: one that reaches nothing but has a card is made with { allow: [] }`,
    )
  }

  async metrics(): Promise<BoxMetrics> {
    const machine = await this.#machine.metrics()
    // A guest that is frozen cannot say anything.
    const asked = this.#machine.phase === 'running' ? this.#agent : undefined
    const guest = asked ? await guestInfo(asked).catch(() => null) : null
    const counters: Record<string, number> = {}
    const add = (group: string, values: Readonly<Record<string, number>>): void => {
      for (const [name, value] of Object.entries(values)) counters[`${group}.${name}`] = value
    }
    machine.vcpus.forEach((values, index) => {
      add(`vcpu${index}`, values)
    })
    for (const [name, values] of Object.entries(machine.devices)) add(name, values)
    const network = await this.#devices.askNetwork?.({ do: 'counters' })
    if (network) add('network', network as Readonly<Record<string, number>>)
    add('legacy', machine.legacy)
    const { user, system } = process.cpuUsage()
    const sum = (...names: string[]): number => names.reduce((total, name) => total + (counters[name] ?? 0), 0)
    const resident = residentMemory(this.#machine.memory)
    return {
      uptimeMs: sinceStart(),
      cpuMs: (user + system) / 1000,
      residentBytes: resident.total,
      guestResidentBytes: resident.guest,
      guest,
      stages: this.#stages.readyMs > 0 ? this.#stages : null,
      disk: { readBytes: sum('blk0.readBytes'), writtenBytes: sum('blk0.writtenBytes') },
      network: { receivedBytes: sum('net3.bytesIn'), sentBytes: sum('net3.bytesOut') },
      exits: sum('legacy.portReads', 'legacy.portWrites', 'legacy.mmioReads', 'legacy.mmioWrites'),
      counters,
    }
  }
}

/** What the CPU had decoded when the snapshot was taken need not be decoded again. */
function adoptSavedCode({ vm }: Machine, store: SnapshotStore, manifest: SnapshotManifest): void {
  const code = vm.adoptCode && store.openCode(manifest, buildId())
  if (!code) return
  vm.adoptCode!(code.fd, code.bytes)
  closeSync(code.fd)
}

/** Milliseconds since this process was created. */
const sinceStart = (): number => Math.round(processAge())
