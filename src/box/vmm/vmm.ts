/**
 * A running box, inside its VMM process: the machine, the agent's connection, the rules of when it ends.
 *
 *   boot ──> agent answers ──> ready ──> (serving control requests) ──> ending ──> exit.json, end of the process
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Machine } from '../../machine/machine.ts'
import { describeExit, formatDump, type MachineExit } from '../../machine/machine-events.ts'
import { connectToGuest } from '../../virtio/vsock/host-api.ts'
import { AgentClient } from '../agent/client.ts'
import { AGENT_PORT } from '../agent/protocol.ts'
import { BoxError } from '../errors.ts'
import { toExit } from '../execution.ts'
import { BoxFolder } from '../home.ts'
import { type BoxRecord, readRecord } from '../record.ts'
import { ConsoleLog } from './console-log.ts'
import { type BoxDevices, boxDevices } from './devices.ts'
import { growDisk, guestInfo, nameGuest, refreshGuest, shutDownGuest } from './identity.ts'
import type { BootStages, BoxExit, BoxMetrics, LaunchPlan, OpenPort } from './launch.ts'
import { residentMemory } from './resident.ts'

/** A guest that boots on the software CPU of a slow machine takes its time; one that says nothing for this long is stuck. */
const SILENCE_LIMIT_MS = 60_000
const AGENT_RETRY_MS = 10
const STOP_GRACE_MS = 15_000
const IDLE_CHECK_MS = 1000

export class Vmm {
  readonly record: BoxRecord
  readonly #folder: BoxFolder
  readonly #machine: Machine
  readonly #devices: BoxDevices
  readonly #console: ConsoleLog
  readonly #stages: { processMs: number; machineMs: number; kernelMs: number; readyMs: number }
  readonly #ended: Promise<BoxExit>
  #resolveEnded!: (exit: BoxExit) => void
  #agent: AgentClient | undefined
  #lastOutput = Date.now()
  #ending: Pick<BoxExit, 'reason' | 'message' | 'exitCode'> | undefined
  #timers: NodeJS.Timeout[] = []

  private constructor(folder: BoxFolder, record: BoxRecord, machine: Machine, devices: BoxDevices, processMs: number) {
    this.#folder = folder
    this.record = record
    this.#machine = machine
    this.#devices = devices
    this.#console = new ConsoleLog(folder.consoleLog)
    this.#stages = { processMs, machineMs: sinceStart(), kernelMs: 0, readyMs: 0 }
    this.#ended = new Promise(resolve => {
      this.#resolveEnded = resolve
    })
    machine.on('console', data => {
      this.#lastOutput = Date.now()
      if (this.#stages.kernelMs === 0) this.#stages.kernelMs = sinceStart()
      this.#console.write(data)
    })
    machine.once('exit', exit => void this.#onMachineExit(exit))
  }

  /** Makes the machine of a box and lets it boot. */
  static async start(plan: LaunchPlan): Promise<Vmm> {
    const processMs = sinceStart()
    const folder = new BoxFolder(plan.folder, plan.id)
    const record = readRecord(folder)
    const { config } = record
    const devices = boxDevices(folder, record)
    const machine = await Machine.create({
      kernel: readFileSync(plan.kernel),
      initrd: readFileSync(plan.initrd),
      cmdline: [
        'console=ttyS0',
        'quiet',
        'panic=-1',
        'vitrine.root=/dev/vda',
        'vitrine.mode=agent',
        ...plan.kernelArguments,
      ].join(' '),
      cpus: config.cpus,
      memoryMib: config.memoryMib,
      accel: plan.accel,
      devices: devices.all,
    })
    const vmm = new Vmm(folder, record, machine, devices, processMs)
    machine.start()
    return vmm
  }

  get stages(): BootStages {
    return this.#stages
  }

  /** Resolves when the machine has ended and everything of it is gone. */
  get ended(): Promise<BoxExit> {
    return this.#ended
  }

  /** Waits for the guest's agent and tells the guest who it is. */
  async becomeReady(): Promise<void> {
    const agent = await this.#connectAgent()
    this.#agent = agent
    await refreshGuest(agent)
    await nameGuest(agent, this.record.name, this.#devices.network)
    await growDisk(agent)
    this.#stages.readyMs = sinceStart()
    this.#watchLimits()
  }

  /** Runs the box's own command, if it has one; the box stops when it ends. */
  runCommand(output: (chunk: Buffer) => void): void {
    const { command, env, workdir, user } = this.record.config
    if (!command || !this.#agent) return
    const process = this.#agent.exec({ argv: command, env, cwd: workdir, user })
    process.stdin.end()
    process.stdout.on('data', output)
    process.stderr.on('data', output)
    process.exit.then(
      exit => this.stop({ reason: 'command-ended', message: 'its command ended', exitCode: toExit(exit).exitCode }),
      (error: Error) => {
        output(Buffer.from(`${error.message}\n`))
        return this.stop({ reason: 'command-ended', message: error.message, exitCode: 127 })
      },
    )
  }

  async #connectAgent(): Promise<AgentClient> {
    let failure: unknown
    while (!this.#machine.exit) {
      try {
        if (existsSync(this.#folder.vsockSocket)) {
          return await AgentClient.connect(await connectToGuest(this.#folder.vsockSocket, AGENT_PORT))
        }
      } catch (error) {
        failure = error
      }
      if (Date.now() - this.#lastOutput > SILENCE_LIMIT_MS) {
        throw new BoxError(
          'GUEST_NOT_READY',
          `the guest of box '${this.record.name}' did not become ready: nothing on its console for ${SILENCE_LIMIT_MS / 1000} s. 'vitrine logs --console ${this.record.name}' shows how far it came`,
          { cause: failure },
        )
      }
      await sleep(AGENT_RETRY_MS)
    }
    throw new BoxError(
      'GUEST_NOT_READY',
      `the guest of box '${this.record.name}' ended while it booted: ${describeExit(this.#machine.exit)}. 'vitrine logs --console ${this.record.name}' shows its console`,
    )
  }

  /** Ends the box: the guest is asked first, and stopped where it is when it does not answer in time. */
  async stop(why: Pick<BoxExit, 'reason' | 'message' | 'exitCode'>, graceMs: number = STOP_GRACE_MS): Promise<void> {
    if (!this.#ending) {
      this.#ending = why
      for (const timer of this.#timers) clearTimeout(timer)
      if (this.#agent && this.#machine.phase === 'running' && graceMs > 0) {
        const asked = shutDownGuest(this.#agent, 'off').then(() => this.#machine.ended())
        asked.catch(() => {})
        await Promise.race([asked, sleep(graceMs, undefined, { ref: false })]).catch(() => {})
      }
      await this.#machine.stop()
    }
    await this.#ended
  }

  async #onMachineExit(exit: MachineExit): Promise<void> {
    this.#agent?.close()
    const crashed = exit.reason === 'triple-fault' || exit.reason === 'internal-error'
    if (crashed && exit.dump) this.#console.write(Buffer.from(`\n${describeExit(exit)}\n${formatDump(exit.dump)}\n`))
    await this.#machine.close()
    this.#console.close()
    const why = this.#ending ?? {
      reason: crashed ? 'guest-crashed' : 'powered-off',
      message: describeExit(exit),
      exitCode: null,
    }
    const end: BoxExit = { ...why, at: new Date().toISOString() }
    writeFileSync(this.#folder.lastExit, `${JSON.stringify(end)}\n`)
    this.#resolveEnded(end)
  }

  /** The box's time to live, and its limit of idleness. */
  #watchLimits(): void {
    const { timeoutMs, idleMs } = this.record.config
    if (timeoutMs > 0) {
      const stop = (): void =>
        void this.stop({ reason: 'timeout', message: `its ${timeoutMs} ms were over`, exitCode: null })
      this.#timers.push(setTimeout(stop, timeoutMs))
    }
    if (idleMs > 0) {
      let lastUse = Date.now()
      const look = async (): Promise<void> => {
        // One connection is our own.
        if ((await this.#devices.openConnections()) > 1 || this.record.config.command) lastUse = Date.now()
        if (Date.now() - lastUse < idleMs) return
        await this.stop({ reason: 'idle', message: `nobody used it for ${idleMs} ms`, exitCode: null })
      }
      this.#timers.push(setInterval(() => void look().catch(() => {}), Math.min(idleMs, IDLE_CHECK_MS)))
    }
  }

  openPorts(): Promise<readonly OpenPort[]> {
    return this.#devices.openPorts()
  }

  async metrics(): Promise<BoxMetrics> {
    const machine = await this.#machine.metrics()
    const guest = this.#agent ? await guestInfo(this.#agent).catch(() => null) : null
    const counters: Record<string, number> = {}
    const add = (group: string, values: Readonly<Record<string, number>>): void => {
      for (const [name, value] of Object.entries(values)) counters[`${group}.${name}`] = value
    }
    machine.vcpus.forEach((values, index) => {
      add(`vcpu${index}`, values)
    })
    for (const [name, values] of Object.entries(machine.devices)) add(name, values)
    add('legacy', machine.legacy)
    const { user, system } = process.cpuUsage()
    const resident = residentMemory(this.#machine.memory)
    return {
      uptimeMs: sinceStart(),
      cpuMs: (user + system) / 1000,
      residentBytes: resident.total,
      guestResidentBytes: resident.guest,
      guest,
      stages: this.#stages.readyMs > 0 ? this.#stages : null,
      counters,
    }
  }
}

/** Milliseconds since this process was created. */
function sinceStart(): number {
  return Math.round(process.uptime() * 1000)
}
