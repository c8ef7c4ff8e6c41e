/**
 * A process that many VMM processes come from. It loads all that they need, opens the snapshot that they go on from, and forks once per
 * box: what it loaded, compiled and mapped is theirs too, and memory holds it once. It ends when all of them are ready.
 *
 *   owner ── plan ──> nursery ── fork ──> VMM of a box: log, lock, devices, resume ──┐
 *     ^                  └─ waits until all are ready, says who died                 │
 *     └─────────────────────── a line of JSON each <─────────────────────────────────┘
 *
 * Nothing that has to do with Node's event loop happens here: all of it would be in every child. So everything blocks.
 */
import { closeSync, openSync, readSync, writeSync } from 'node:fs'
import { resolve } from 'node:path'
import { loadAccelerator } from '../accel/select.ts'
import { childEnd, dieWith, forkProcess, openPipe, standAlone } from '../host/fork.ts'
import { mapLargeBuffers, tidyHeap } from '../host/heap.ts'
import { lockUp } from '../host/jail.ts'
import { POLLIN, PollSet } from '../host/poll.ts'
import { SnapshotStore } from '../snapshot/store.ts'
import { wasmModule } from '../wasm/loader.ts'
import { BoxFolder } from './home.ts'
import type { NurseryMessage, NurseryPlan } from './vmm/launch.ts'
import { loadEarly } from './vmm/load-early.ts'
import { CHANNEL, OwnerChannel } from './vmm/owner-channel.ts'
import { type MappedMachine, mapSaved } from './vmm/restored-memory.ts'
import { serveBox, type VmmOwner } from './vmm/serve.ts'

/** Children in the making: 100 at once start as soon as 3 or 4 at a time do, on two cores. */
const AT_A_TIME = 32

/** Short lines: the kernel takes them whole, whoever else writes. */
const say = (message: NurseryMessage): void => void writeSync(CHANNEL, `${JSON.stringify(message)}\n`)

/** One line, from before which nothing was read. */
function readPlan(): NurseryPlan {
  const chunks: Buffer[] = []
  for (;;) {
    const chunk = Buffer.alloc(65536)
    const length = readSync(CHANNEL, chunk)
    chunks.push(chunk.subarray(0, length))
    // Its owner ended, or has changed its mind.
    if (length === 0) process.exit(0)
    if (chunk[length - 1] === 10) return JSON.parse(Buffer.concat(chunks).toString()) as NurseryPlan
  }
}

/** What would be loaded when it is first used, in every child again. */
async function loadEverything(): Promise<void> {
  wasmModule('cpu')
  loadEarly()
  await loadAccelerator('soft')
  await import('../soft/lockstep.ts')
}

async function main(): Promise<void> {
  mapLargeBuffers()
  lockUp()
  await loadEverything()
  const { launch, boxes } = readPlan()
  let mapped: MappedMachine
  const folders = boxes.map(({ path, id }) => new BoxFolder(path, id))
  try {
    mapped = await mapSaved(new SnapshotStore(resolve(folders[0]!.path, '../..')), launch.restore!, launch.accel)
  } catch (error) {
    const { code, message } = error as Error & { code?: string }
    say({ type: 'all-failed', code: code ?? 'VMM_FAILED', message })
    process.exit(1)
  }
  tidyHeap()
  const nursery = process.pid
  const births = new Births()
  for (const [index, folder] of folders.entries()) {
    births.waitForFewer(AT_A_TIME)
    const ready = openPipe()
    let pid: number
    try {
      pid = forkProcess()
    } catch (error) {
      say({ type: 'unable', boxes: boxes.slice(index).map(({ id }) => id), message: (error as Error).message })
      break
    }
    if (pid === 0) {
      births.forget()
      closeSync(ready.read)
      return becomeVmm(folder, nursery, ready.write, owner => serveBox(folder, owner, Promise.resolve(launch), mapped))
    }
    closeSync(ready.write)
    births.add(pid, folder.id, ready.read)
  }
  births.waitForFewer(1)
  say({ type: 'done' })
  process.exit(0)
}

/** Children that are not ready yet: each holds the other end of a pipe, into which it writes a byte when it is. */
class Births {
  readonly #poll = new PollSet()
  readonly #pipes = new Set<number>()

  add(pid: number, box: string, pipe: number): void {
    this.#pipes.add(pipe)
    this.#poll.add(pipe, POLLIN, () => {
      const isReady = readSync(pipe, Buffer.alloc(1)) === 1
      this.#poll.remove(pipe)
      this.#pipes.delete(pipe)
      closeSync(pipe)
      if (!isReady) say({ type: 'ended', box, how: childEnd(pid) })
    })
  }

  waitForFewer(count: number): void {
    while (this.#pipes.size >= count) this.#poll.wait(-1)
  }

  /** In a child: they are none of its business. */
  forget(): void {
    for (const pipe of this.#pipes) closeSync(pipe)
  }
}

/** In a child: what belongs to one box. */
async function becomeVmm(
  folder: BoxFolder,
  nursery: number,
  ready: number,
  serve: (owner: VmmOwner) => Promise<never>,
): Promise<void> {
  // Nobody would say that it died.
  dieWith(nursery)
  const log = openSync(folder.vmmLog, 'w', 0o600)
  standAlone(log)
  closeSync(log)
  // What a list of processes shows: as if it had been started by itself. There is room for as much as the nursery's own command line takes.
  process.title = `vmm.process ${folder.path} ${folder.id}`
  const channel = new OwnerChannel({ box: folder.id })
  channel.listen(undefined)
  const owner: VmmOwner = {
    tell: async message => {
      await channel.tell(message)
      if (message.type !== 'ready') return
      // Whoever waits for us hears of it after the owner has.
      dieWith(0)
      writeSync(ready, 'r')
      closeSync(ready)
    },
    onGone: listener => channel.onGone(listener),
    leave: () => channel.leave(),
  }
  await serve(owner)
}

void main()
