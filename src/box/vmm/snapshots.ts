/** Taking snapshots of a running box, inside its VMM process: memory in rounds, then a short pause for the rest and the disk. */
import { basename, dirname, join } from 'node:path'
import { ChangedPages } from '../../machine/changed-pages.ts'
import { saveLive } from '../../machine/live-save.ts'
import type { Machine } from '../../machine/machine.ts'
import { encodeMachineState } from '../../machine/machine-state.ts'
import type { SnapshotFacts } from '../../snapshot/draft.ts'
import type { JsonValue, SnapshotKind, SnapshotManifest } from '../../snapshot/manifest.ts'
import type { MemoryImage } from '../../snapshot/memory-image.ts'
import type { SnapshotStore } from '../../snapshot/store.ts'
import { buildId } from '../build-id.ts'
import type { BoxFolder } from '../home.ts'
import type { BoxRecord } from '../record.ts'
import { cpuOf } from './cpu.ts'
import type { BoxDevices } from './devices.ts'
import type { LaunchPlan, TakenSnapshot } from './launch.ts'

const PAGE = 4096
/** A longer chain than this is not worth what it saves: the next layer holds everything. */
const LONGEST_CHAIN = 24

export interface WantedSnapshot {
  readonly name: string | null
  readonly kind: SnapshotKind
  readonly diskOnly?: boolean
  /** For a template. */
  readonly key?: string
  /** The machine stays paused. */
  readonly stay?: boolean
  /** Called when the guest runs again; the snapshot is not durable yet. */
  readonly onLive?: () => void
}

/** What a machine's memory stands on: the snapshot that it was restored from or saved to last. */
interface Base {
  readonly image: MemoryImage
  readonly snapshot: string
}

/** A box in its VMM process. */
export interface SnapshotParts {
  readonly store: SnapshotStore
  readonly plan: LaunchPlan
  readonly folder: BoxFolder
  readonly record: BoxRecord
  readonly machine: Machine
  readonly devices: BoxDevices
  readonly restored: { readonly image: MemoryImage; readonly manifest: SnapshotManifest } | undefined
}

export class VmmSnapshots {
  readonly #store: SnapshotStore
  readonly #plan: LaunchPlan
  readonly #folder: BoxFolder
  readonly #record: BoxRecord
  readonly #machine: Machine
  readonly #devices: BoxDevices
  readonly #changed: ChangedPages
  #base: Base | undefined
  #parent: string | null
  /** One at a time: a snapshot needs its parent's to be complete. */
  #turn: Promise<unknown> = Promise.resolve()

  constructor({ store, plan, folder, record, machine, devices, restored }: SnapshotParts) {
    this.#store = store
    this.#plan = plan
    this.#folder = folder
    this.#record = record
    this.#machine = machine
    this.#devices = devices
    this.#changed = new ChangedPages(machine.vm)
    this.#base = restored && { image: restored.image, snapshot: restored.manifest.id }
    this.#parent = restored?.manifest.owner === record.id ? restored.manifest.id : (record.parent ?? null)
  }

  /** Takes one; resolves when it is durable. */
  take(wanted: WantedSnapshot): Promise<TakenSnapshot> {
    return this.inTurn(() => this.#take(wanted))
  }

  /** Does something between two snapshots: whoever pauses or resumes the machine amid one makes it a snapshot of two moments. */
  inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#turn.then(work)
    this.#turn = turn.catch(() => {})
    return turn
  }

  /** Resolves when nothing is being written any more. */
  async settled(): Promise<void> {
    await this.#turn
  }

  async #take(wanted: WantedSnapshot): Promise<TakenSnapshot> {
    const started = performance.now()
    const { disk } = this.#folder
    const { id, name } = this.#record
    const draft = await this.#store.begin({
      owner: wanted.kind === 'template' ? 'template' : id,
      box: { id, name },
      name: wanted.name,
      kind: wanted.kind,
      ...(wanted.key === undefined ? {} : { key: wanted.key }),
      parent: wanted.kind === 'template' ? null : this.#parent,
    })
    let image: MemoryImage | undefined
    try {
      // Whatever takes long is done while the guest runs.
      await this.#devices.disk.control('flush')
      draft.prepareDisk(disk)
      const freeze = async (): Promise<void> => {
        await this.#devices.disk.control('release')
        try {
          draft.freezeDisk(disk)
        } finally {
          await this.#devices.disk.control('reopen')
        }
      }
      const base = this.#base && this.#base.image.layers.length < LONGEST_CHAIN ? this.#base : undefined
      const writer = wanted.diskOnly
        ? undefined
        : draft.memory({ size: this.#machine.memory.size, ...(base ? { parent: base.image } : {}) })
      let pauseMs: number
      let rounds = 0
      let state: Uint8Array | null = null
      let code: Uint8Array | undefined
      if (writer) {
        const sink = {
          writePages: (page: number, bytes: Uint8Array): void => writer.write(page * PAGE, bytes),
        }
        if (!base && this.#base) this.#changed.everything()
        const atOnce = async (): Promise<MemoryImage> => {
          await freeze()
          code = this.#machine.vm.saveCode?.()
          return writer.seal()
        }
        const saved = await saveLive(this.#machine, this.#changed, sink, atOnce, wanted.stay)
        ;({ pauseMs, rounds, result: image } = saved)
        state = encodeMachineState(saved.state)
      } else pauseMs = await this.#whilePaused(freeze)
      const liveMs = performance.now() - started
      wanted.onLive?.()
      if (code) draft.code(code, buildId())
      const manifest = await draft.commit(await this.#facts(state))
      if (image && wanted.kind === 'template') {
        // Nobody goes back to it from here, so what changes is not worth a log.
        image.close()
        this.#changed.forget()
      } else if (image) {
        this.#changed.saved()
        this.#base?.image.close()
        this.#base = { image, snapshot: manifest.id }
        this.#store.hold(this.#folder.path, image.layerFiles)
      }
      if (wanted.kind === 'snapshot') this.#parent = manifest.id
      const memoryBytes = writer ? writer.pages * PAGE : 0
      return { id: manifest.id, pauseMs, liveMs, totalMs: performance.now() - started, memoryBytes, rounds }
    } catch (error) {
      // Its files stay open otherwise, one set more at every attempt.
      if (image !== this.#base?.image) image?.close()
      throw error
    } finally {
      draft.abort()
    }
  }

  async #whilePaused(work: () => Promise<void>): Promise<number> {
    const started = performance.now()
    const running = this.#machine.phase === 'running'
    if (running) await this.#machine.pause()
    try {
      await work()
    } finally {
      if (running) await this.#machine.resume()
    }
    return performance.now() - started
  }

  async #facts(state: Uint8Array | null): Promise<SnapshotFacts> {
    const { config, baseDisk, imageId } = this.#record
    const { accel, kernel, initrd } = this.#plan
    const shape = {
      accelerator: accel,
      cpus: config.cpus,
      memoryMib: config.memoryMib,
      kernel: join(basename(dirname(kernel)), basename(kernel)),
      initrd: basename(initrd),
    }
    return {
      state,
      machine: state ? shape : null,
      cpu: state ? await cpuOf(accel) : null,
      base: baseDisk,
      image: config.image,
      imageId,
      // Plain values: it was read from JSON.
      settings: this.#record as unknown as JsonValue,
    }
  }

  close(): void {
    this.#base?.image.close()
    this.#base = undefined
    this.#store.hold(this.#folder.path, [])
  }
}
