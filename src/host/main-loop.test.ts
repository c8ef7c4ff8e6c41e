import { mkdtempSync, rmSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { connect, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { afterAll, afterEach, describe, expect, it } from 'vitest'
import { createEventFd, drainEventFd, signalEventFd } from './event-fd.ts'
import { closeFd } from './file.ts'
import { MainLoop } from './main-loop.ts'
import { POLLIN } from './poll.ts'
import { TimerFd } from './testing/timer-fd.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-loop-'))
afterAll(() => rmSync(folder, { recursive: true }))
let loop: MainLoop | undefined
afterEach(() => {
  loop?.close()
  loop = undefined
})

/** Work that never has anything to do by itself: the loop sleeps as long as it may. */
const idle = { turn: () => Number.POSITIVE_INFINITY }

/** The same, counted. */
class CountingWork {
  turns = 0
  turn(): number {
    this.turns++
    return Number.POSITIVE_INFINITY
  }
}

describe('one loop for a guest, its devices and Node', () => {
  it('is available in this Node', () => expect(MainLoop.isAvailable).toBe(true))

  it.each([
    ['idle', idle],
    ['busy', { turn: () => 0 }],
    ['without work', undefined],
  ])('keeps Node going: timers, immediates, sockets, files, threads (%s)', async (_what, work) => {
    loop = new MainLoop()
    loop.work = work
    await sleep(5)
    await nextTurn()
    // Each answer registers a new socket, from within a callback: none may be slept through.
    const path = join(folder, 'echo')
    const server = createServer(socket => socket.pipe(socket))
    await new Promise<void>(listening => server.listen(path, listening))
    for (let round = 0; round < 200; round++) {
      const echoed = await new Promise<string>((resolve, reject) => {
        const socket = connect(path)
        socket.on('connect', () => socket.write(`round ${round}`))
        socket.on('error', reject).on('data', data => socket.end(() => resolve(data.toString())))
      })
      expect(echoed).toBe(`round ${round}`)
      if (round % 20 === 0) await readFile('/proc/self/stat')
    }
    server.close()
    const worker = new Worker('require("worker_threads").parentPort.postMessage("hello")', { eval: true })
    // Both at once: a thread that has ended when its message is looked at says so in the same turn.
    const heard = new Promise(resolve => worker.once('message', resolve))
    const ended = new Promise(resolve => worker.once('exit', resolve))
    expect(await heard).toBe('hello')
    await ended
  })

  it('calls the handlers of descriptors, and does not while they are held', async () => {
    loop = new MainLoop()
    loop.work = idle
    const fd = createEventFd()
    let heard = 0
    loop.poll.add(fd, POLLIN, () => {
      heard += drainEventFd(fd)
    })
    signalEventFd(fd)
    while (heard === 0) await nextTurn()
    loop.held = true
    signalEventFd(fd)
    await sleep(20)
    expect(heard).toBe(1)
    loop.held = false
    while (heard === 1) await nextTurn()
    loop.poll.remove(fd)
    closeFd(fd)
  })

  it('gives work its turns, when it asks for them and after every event', async () => {
    loop = new MainLoop()
    const timer = new TimerFd()
    let [turns, rings] = [0, 0]
    loop.poll.add(timer.fd, POLLIN, () => {
      timer.drain()
      if (++rings < 100) timer.set(0.2)
    })
    timer.set(0.2)
    loop.work = { turn: () => (turns++ < 10 ? 0.1 : Number.POSITIVE_INFINITY) }
    while (rings < 100) await sleep(1)
    expect(turns).toBeGreaterThanOrEqual(100)
    loop.poll.remove(timer.fd)
    closeFd(timer.fd)
  })

  it('is woken by other threads', async () => {
    loop = new MainLoop()
    const counting = new CountingWork()
    loop.work = counting
    const { wakeFd } = loop
    await sleep(20)
    const before = counting.turns
    const code = `require('node:fs').writeSync(${wakeFd}, Buffer.from([1, 0, 0, 0, 0, 0, 0, 0]))`
    const worker = new Worker(code, { eval: true })
    await new Promise(resolve => worker.once('exit', resolve))
    await nextTurn()
    expect(counting.turns).toBeGreaterThan(before)
  })

  it('sleeps when there is nothing to do', async () => {
    loop = new MainLoop()
    const counting = new CountingWork()
    loop.work = counting
    await sleep(50)
    const before = counting.turns
    await sleep(500)
    expect(counting.turns - before).toBeLessThan(20)
  })
})
