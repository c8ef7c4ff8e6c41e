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
import { childEnd, dieWith, forkProcess, openPipe, standAlone } from '../host/fork.ts'
import { mapLargeBuffers, tidyHeap } from '../host/heap.ts'
import { lockUp } from '../host/jail.ts'
import { lookUpAll } from '../host/libc.ts'
import { POLLIN, PollSet } from '../host/poll.ts'
import { SnapshotStore } from '../snapshot/store.ts'
import { BoxFolder } from './home.ts'
import { CHANNEL, type LaunchPlan, type NurseryMessage, type NurseryRequest } from './vmm/launch.ts'
import { loadEarly, loadSoft } from './vmm/load-early.ts'
import { OwnerChannel } from './vmm/owner-channel.ts'
import { type MappedMachine, mapSaved } from './vmm/restored-memory.ts'
import { serveBox, type VmmOwner } from './vmm/serve.ts'

/** Children in the making: 100 at once start as soon as 3 or 4 at a time do, on two cores. */
const AT_A_TIME = 32

/** Where the owner says what to do. */
const REQUESTS = 0

/** Short lines: the kernel takes them whole, whoever else writes. */
const say = (message: NurseryMessage): void => void writeSync(CHANNEL, `${JSON.stringify(message)}\n`)

/** What the owner says, a line at a time. */
class Requests {
  readonly #chunk = Buffer.alloc(65536)
  #text = ''

  next(): NurseryRequest {
    for (;;) {
      const end = this.#text.indexOf('\n')
      if (end >= 0) {
        const line = this.#text.slice(0, end)
        this.#text = this.#text.slice(end + 1)
        return JSON.parse(line) as NurseryRequest
      }
      const length = readSync(REQUESTS, this.#chunk)
      // Its owner ended, or has changed its mind.
      if (length === 0) process.exit(0)
      this.#text += this.#chunk.toString('utf8', 0, length)
    }
  }
}

/** What would be loaded when it is first used, in every child again. */
async function loadEverything(): Promise<void> {
  lookUpAll()
  loadEarly()
  await loadSoft()
}

async function main(): Promise<void> {
  mapLargeBuffers()
  lockUp()
  await loadEverything()
  const requests = new Requests()
  const first = requests.next()
  if (!('launch' in first)) process.exit(0)
  const { launch } = first
  let mapped: MappedMachine | undefined
  const nursery = process.pid
  const births = new Births()
  const unable: string[] = []
  for (let request = requests.next(); 'box' in request; request = requests.next()) {
    const folder = new BoxFolder(request.box.path, request.box.id)
    mapped ??= await prepare(folder, launch)
    births.waitForFewer(AT_A_TIME)
    const ready = openPipe()
    let pid = -1
    try {
      if (unable.length === 0) pid = forkProcess()
    } catch (error) {
      process.stderr.write(`${(error as Error).message}\n`)
    }
    if (pid < 0) {
      unable.push(folder.id)
      closeSync(ready.read)
      closeSync(ready.write)
      continue
    }
    if (pid === 0) {
      const machine = mapped
      births.forget()
      closeSync(ready.read)
      return becomeVmm(folder, nursery, ready.write, owner => serveBox(folder, owner, Promise.resolve(launch), machine))
    }
    closeSync(ready.write)
    births.add(pid, folder.id, ready.read)
  }
  if (unable.length > 0) say({ type: 'unable', boxes: unable })
  births.waitForFewer(1)
  say({ type: 'done' })
  process.exit(0)
}

/** Opens what all of them go on from. */
async function prepare(folder: BoxFolder, launch: LaunchPlan): Promise<MappedMachine> {
  try {
    const mapped = await mapSaved(new SnapshotStore(resolve(folder.path, '../..')), launch.restore!, launch.accel)
    tidyHeap()
    return mapped
  } catch (error) {
    const { code, message } = error as Error & { code?: string }
    say({ type: 'all-failed', code: code ?? 'VMM_FAILED', message })
    process.exit(1)
  }
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
    // The set is the nursery's still: nothing is taken out of it.
    this.#poll.close()
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
    // We would have been killed with it.
    isThere: true,
    onGone: listener => channel.onGone(listener),
    leave: () => channel.leave(),
  }
  await serve(owner)
}

void main()
