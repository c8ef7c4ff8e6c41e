/**
 * Saving a machine while it runs. Its memory is written out in rounds, each of what the guest wrote during the round
 * before, until little is left; only then is it paused, for the rest, its state, and whatever the caller must do while
 * nothing moves. So the pause does not grow with memory.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { RAM_OFFSET } from '../memory/layout.ts'
import { addPages, countPages, eachRun, type PageBits } from '../memory/page-set.ts'
import type { ChangedPages } from './changed-pages.ts'
import { MachineError } from './errors.ts'
import type { Machine } from './machine.ts'
import type { MachineState } from './machine-state.ts'

const PAGE = 4096
/** Written in one go before other work of this thread has its turn: 1 MiB. */
const PIECE_PAGES = 256
/** Few enough pages to write while the guest waits: 2 MiB, a millisecond or two. */
const LAST_PAGES = 512
const MAX_ROUNDS = 12
/** A round that leaves more than this part of the one before is not gaining on the guest. */
const GAIN = 0.8
const MAX_LOSING_ROUNDS = 3

/** Takes pages in any order; one that comes again replaces what it was. `bytes` is guest memory, not a copy. */
export interface PageSink {
  writePages(firstPage: number, bytes: Uint8Array): void
}

export interface LiveSave<Result> {
  readonly state: MachineState
  readonly result: Result
  /** How long the guest stood still; 0 if it was paused before. */
  readonly pauseMs: number
  readonly totalMs: number
  /** Pages handed to the sink, those that came twice counted twice, and how many of them during the pause. */
  readonly pagesWritten: number
  readonly pagesInPause: number
  readonly rounds: number
}

/**
 * Saves `machine`, running or paused, and leaves it as it was, or paused if `stay` is set. `whilePaused` is called when
 * memory and state are complete: what belongs to the same moment (a disk) is done there. When anything fails the
 * machine goes on.
 */
export async function saveLive<Result>(
  machine: Machine,
  changed: ChangedPages,
  sink: PageSink,
  whilePaused: () => Promise<Result>,
  stay = false,
): Promise<LiveSave<Result>> {
  const started = performance.now()
  const running = machine.phase === 'running'
  let pagesWritten = 0
  const write = (first: number, count: number): void => {
    const at = RAM_OFFSET + first * PAGE
    sink.writePages(first, machine.memory.bytes.subarray(at, at + count * PAGE))
    pagesWritten += count
  }
  changed.begin()
  let quiet = !running || (await changed.settled())
  let rest = changed.candidates()
  let rounds = 0
  if (running && quiet) {
    let last = Number.POSITIVE_INFINITY
    let losing = 0
    for (; rounds < MAX_ROUNDS; rounds++) {
      const left = countPages(rest)
      if (left <= LAST_PAGES) break
      if (left > last * GAIN && ++losing > MAX_LOSING_ROUNDS) break
      last = left
      quiet = await changed.settled()
      if (!quiet) break
      await writeSlowly(rest, changed.pages, write)
      rest = changed.take()
    }
  }
  const pausedAt = performance.now()
  try {
    if (running) await machine.pause()
    if (machine.phase !== 'paused') {
      throw new MachineError('BAD_STATE', `a machine that is ${machine.phase} cannot be saved`)
    }
    addPages(rest, changed.take())
    const before = pagesWritten
    eachRun(rest, changed.pages, PIECE_PAGES, write)
    const pagesInPause = pagesWritten - before
    const state = await machine.save()
    const result = await whilePaused()
    if (running && !stay) await machine.resume()
    const now = performance.now()
    return {
      ...{ state, result, pagesWritten, pagesInPause, rounds },
      ...{ pauseMs: running ? now - pausedAt : 0, totalMs: now - started },
    }
  } catch (error) {
    if (running) await machine.resume()
    throw error
  }
}

async function writeSlowly(
  bits: PageBits,
  pages: number,
  write: (first: number, count: number) => void,
): Promise<void> {
  const runs: number[] = []
  eachRun(bits, pages, PIECE_PAGES, (first, count) => runs.push(first, count))
  let since = 0
  for (let i = 0; i < runs.length; i += 2) {
    write(runs[i]!, runs[i + 1]!)
    since += runs[i + 1]!
    if (since < PIECE_PAGES) continue
    since = 0
    await nextTurn()
  }
}
