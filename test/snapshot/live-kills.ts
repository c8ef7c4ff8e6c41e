/**
 * kill -9 in the middle of what changes snapshots, with boxes that run: the command that asked, the box's VMM process, or both, at a
 * random moment of the time that the work takes. Afterwards every snapshot is absent or whole, and every box there is starts.
 */
import { spawn } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Box } from '../../src/box/box.ts'
import type { Runtime } from '../../src/box/runtime.ts'
import { snapshotStore } from '../../src/box/snapshots.ts'
import { assetPath } from '../../src/host/assets.ts'
import { Random } from '../../src/qcow2/testing/random.ts'
import { namesIn } from '../../src/snapshot/folder.ts'

const MARKER = '/root/marker'
/** What everything goes back to; never removed. */
const FIRST = 'first'
/** Of a box: more are removed, so that checking does not take ever longer. */
const MOST_SNAPSHOTS = 4

export interface LiveKills {
  readonly kills: number
  /** Kills that hit while the command was at work. */
  readonly hits: number
  /** Snapshots that were read whole after a kill, and boxes that were started. */
  readonly checked: number
  readonly started: number
}

type Operation = 'snapshot' | 'rollback' | 'fork' | 'remove' | 'import'
const OPERATIONS: readonly Operation[] = ['snapshot', 'rollback', 'fork', 'remove', 'import']

export async function killLiveBoxes(
  runtime: Runtime,
  scratch: string,
  kills: number,
  seed: number,
  log: (text: string) => void,
): Promise<LiveKills> {
  const round = new KillRound(runtime, scratch, seed, log)
  await round.prepare()
  try {
    for (let i = 0; i < kills; i++) await round.run(OPERATIONS[i % OPERATIONS.length]!, i)
  } finally {
    for (const box of await Box.list(runtime)) await box.remove({ force: true })
  }
  return { kills, ...round.counts }
}

class KillRound {
  readonly counts = { hits: 0, checked: 0, started: 0 }
  readonly #runtime: Runtime
  readonly #random: Random
  readonly #exported: string
  readonly #log: (text: string) => void
  readonly #name = 'victim'
  /** How long each operation took when nobody was killed. */
  readonly #takes = new Map<Operation, number>()
  #box!: Box

  constructor(runtime: Runtime, scratch: string, seed: number, log: (text: string) => void) {
    this.#runtime = runtime
    this.#random = new Random(seed)
    this.#exported = join(scratch, 'exported')
    this.#log = log
  }

  async prepare(): Promise<void> {
    const options = { name: this.#name, memoryMib: 128, diskGib: 1, detach: true, network: 'none' } as const
    this.#box = await Box.create(options, this.#runtime)
    await this.#box.files.write(MARKER, 'kept\n')
    await this.#box.exec('sync')
    await this.#box.snapshot(FIRST)
    await this.#command(['export', '--output', this.#exported, `${this.#name}@${FIRST}`])
    for (const operation of OPERATIONS) {
      const began = performance.now()
      await this.#command(await this.#arguments(operation, 'measured'))
      this.#takes.set(operation, performance.now() - began)
    }
    await this.#tidy()
  }

  async run(operation: Operation, number: number): Promise<void> {
    if (this.#box.state !== 'running') await this.#box.start()
    const args = await this.#arguments(operation, `r${number}`)
    const delay = this.#random.below(Math.ceil(this.#takes.get(operation)! * 1.1))
    const victims = operation === 'remove' || operation === 'import' ? 0 : this.#random.below(3)
    const hit = await this.#command(args, async kill => {
      await sleep(delay)
      if (victims !== 1) kill()
      if (victims !== 0) this.#killVmms()
    })
    if (hit) this.counts.hits++
    this.#log(
      `${number}: ${operation}, ${['the command', 'the VMM', 'both'][victims]} after ${delay} ms${hit ? '' : ' (it was done)'}`,
    )
    await this.#check()
    await this.#tidy()
  }

  async #arguments(operation: Operation, tag: string): Promise<string[]> {
    switch (operation) {
      case 'snapshot':
        return ['snapshot', 'create', this.#name, `s-${tag}`]
      case 'rollback':
        return ['rollback', this.#name, FIRST]
      case 'fork':
        return ['fork', this.#name, `fork-${tag}`]
      case 'import':
        return ['import', '--name', `i-${tag}`, this.#exported]
      case 'remove': {
        const { name } = await this.#box.snapshot(`gone-${tag}`)
        return ['snapshot', 'rm', `${this.#name}@${name}`]
      }
    }
  }

  /** Runs the CLI; `meanwhile` may kill it. True when it did not get to its end. */
  #command(args: readonly string[], meanwhile?: (kill: () => void) => Promise<void>): Promise<boolean> {
    return new Promise((resolve, reject) => {
      const child = spawn(process.execPath, [assetPath('cli.js'), ...args], {
        env: { ...process.env, VITRINE_HOME: this.#runtime.home.path },
        stdio: ['ignore', 'ignore', 'pipe'],
      })
      let errors = ''
      child.stderr.on('data', text => {
        errors += text
      })
      const done = meanwhile?.(() => child.kill('SIGKILL'))
      child.once('close', async status => {
        await done
        if (!meanwhile && status !== 0) reject(new Error(`vitrine ${args.join(' ')}: ${errors}`))
        else resolve(status !== 0)
      })
    })
  }

  /** All VMM processes of this home, and those that they come from. */
  #killVmms(): void {
    for (const pid of readdirSync('/proc').filter(name => /^\d+$/.test(name))) {
      try {
        const line = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        if (/(?:vmm|nursery)\.process/.test(line) && line.includes(`${this.#runtime.home.boxes}/`))
          process.kill(Number(pid), 'SIGKILL')
      } catch {
        // It ended meanwhile.
      }
    }
  }

  async #check(): Promise<void> {
    const store = snapshotStore(this.#runtime)
    const damaged = store.damaged()
    if (damaged.length > 0) throw new Error(`a snapshot is neither absent nor whole: ${damaged[0]!.error.message}`)
    for (const manifest of store.list()) {
      await store.verify(manifest)
      this.counts.checked++
    }
    store.find(this.#box.id, FIRST)
    for (const box of await Box.list(this.#runtime)) {
      try {
        const { stdout } = await box.exec('cat', [MARKER])
        if (stdout !== 'kept\n') throw new Error(`box '${box.name}' lost its file: '${stdout}'`)
        this.counts.started++
      } finally {
        box.close()
      }
    }
  }

  /** Forks and snapshots that are in the way go; what killed processes left goes with them. */
  async #tidy(): Promise<void> {
    for (const box of await Box.list(this.#runtime)) if (box.id !== this.#box.id) await box.remove({ force: true })
    const store = snapshotStore(this.#runtime)
    for (const manifest of store.list()) {
      const { owner, name, kind } = manifest
      const isOld = owner === 'import' || (owner === this.#box.id && name !== FIRST && kind === 'snapshot')
      if (isOld && (owner === 'import' || (await this.#box.snapshots()).length > MOST_SNAPSHOTS)) {
        await store.removeSnapshot(manifest)
      }
    }
    const { busy } = await store.sweep(10_000)
    const left = namesIn(store.folder.tmp)
    if (!busy && left.length > 0) throw new Error(`a sweep left ${left.join(', ')}`)
  }
}
