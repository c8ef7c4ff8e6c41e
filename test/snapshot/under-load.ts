/**
 * Snapshots of a busy guest, each restored into a box of its own: all that ran goes on from exactly there, on a disk that is clean.
 * Then forks of it, which differ in what they must and are right in what they do. For both testbeds.
 */
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Box } from '../../src/box/box.ts'
import type { Runtime } from '../../src/box/runtime.ts'
import {
  advances,
  commonLines,
  failures,
  holdJournal,
  LOAD_PORT,
  type Progress,
  progressOf,
  sh,
  startLoad,
} from './load.ts'

const SAY_EVERY_MS = 30_000

export interface Extent {
  /** Snapshots and forks, unless VITRINE_SNAPSHOT_ROUNDS and VITRINE_FORKS say otherwise. */
  readonly rounds: number
  readonly forks: number
  /** For one round, or one fork. */
  readonly limitMs: number
}

export function snapshotTests(runtime: Runtime, usual: Extent): void {
  const rounds = Number(process.env.VITRINE_SNAPSHOT_ROUNDS || usual.rounds)
  const count = Number(process.env.VITRINE_FORKS || usual.forks)
  const scratch = mkdtempSync(join(tmpdir(), 'vitrine-snapshots-'))
  let box: Box
  /** When the first snapshot was taken. */
  let first: Progress
  let outside: { server: Server; sockets: Socket[]; port: number }

  beforeAll(async () => {
    outside = await listen()
    box = await Box.create({ memoryMib: 128, diskGib: 1, network: { allow: ['host.vitrine.internal'] } }, runtime)
    await startLoad(box)
    // A connection that leaves the machine: of two machines only one can have it.
    await sh(
      box,
      `(setsid sh -c 'nc host.vitrine.internal ${outside.port} < /dev/zero > /dev/null; echo ended > /root/outside' </dev/null >/dev/null 2>&1 &)`,
    )
    await new Promise<void>(resolve => {
      if (outside.sockets.length > 0) resolve()
      else outside.server.once('connection', () => resolve())
    })
  }, usual.limitMs * 3)

  afterAll(async () => {
    await box?.remove({ force: true })
    for (const socket of outside?.sockets ?? []) socket.destroy()
    outside?.server.close()
    rmSync(scratch, { recursive: true })
  }, usual.limitMs)

  describe('a busy guest', () => {
    it(`is saved ${rounds} times and goes on from each`, { timeout: usual.limitMs * rounds }, async () => {
      for (let round = 1; round <= rounds; round++) {
        const before = await progressOf(box)
        if (round === 1) first = before
        const { id } = await box.snapshot(`round-${round}`)
        const restored = await Box.restore(id, { name: `${box.name}-r${round}` }, runtime)
        try {
          await goesOnFrom(restored, before)
          // Both machines have the past in common; then the one that was restored drew other random numbers.
          const [theirs, ours] = [await holdJournal(restored), await holdJournal(box)]
          for (const { lines, count } of [theirs, ours]) {
            expect(lines.map(line => Number(line.split(' ')[0]))).toEqual(
              Array.from({ length: count }, (_, i) => i + 1),
            )
          }
          const shared = commonLines(theirs.lines, ours.lines)
          expect(shared).toBeGreaterThanOrEqual(before.journal)
          expect(shared).toBeLessThan(theirs.lines.length)
          expect(await sh(restored, 'until [ -e /root/outside ]; do usleep 50000; done; cat /root/outside')).toBe(
            'ended\n',
          )
          expect(await failures(restored)).toBe('')
          await restored.stop()
          cleanDisk(restored, join(scratch, 'disk.raw'))
          if (rounds > usual.rounds) console.log(`round ${round} of ${rounds}: ${shared} lines in common`)
        } finally {
          await restored.remove({ force: true })
        }
      }
      expect(await box.snapshots()).toHaveLength(rounds)
      expect(await sh(box, 'ls /root')).not.toMatch(/outside/)
      expect(await failures(box)).toBe('')
    })

    it('is put back in place', { timeout: usual.limitMs * 2 }, async () => {
      const ahead = await holdJournal(box)
      // Whoever waits for a command of what is given up hears of it.
      const cut = expect(box.exec('sleep', ['1000'])).rejects.toMatchObject({ code: 'DISCONNECTED' })
      await box.rollback('round-1')
      await cut
      await goesOnFrom(box, first)
      const back = await holdJournal(box)
      const shared = commonLines(back.lines, ahead.lines)
      expect(shared).toBeGreaterThanOrEqual(first.journal)
      expect(shared).toBeLessThan(ahead.lines.length)
      expect(await failures(box)).toBe('')
    })
  })

  it(`a guest is forked into ${count} that differ, and is itself unharmed`, {
    timeout: usual.limitMs * (2 + count / 10),
  }, async () => {
    await using parent = await Box.create({ memoryMib: 128, diskGib: 1 }, runtime)
    await startMemory(parent)
    const secret = (await ask(parent, 'parent')).split(' ')[0]!
    using _said = count > usual.forks ? sayHowManyRun(runtime) : undefined
    const forks = await parent.fork({ count })
    try {
      const answers = await Promise.all(forks.map((fork, i) => askFork(fork, `input-${i}`)))
      for (const [i, answer] of answers.entries()) {
        expect(answer.memory).toBe(`${secret} 2 input-${i}`)
        expect(answer.sum).toBe(createHash('sha256').update(`input-${i}\n`).digest('hex'))
        expect(answer.hostname).toBe(forks[i]!.name)
        expect(answer.address).toMatch(/inet 10\./)
      }
      for (const what of ['uuid', 'hostname', 'mac'] as const) {
        expect(new Set(answers.map(answer => answer[what])).size).toBe(count)
      }
    } finally {
      await Promise.all(forks.map(fork => fork.remove({ force: true })))
    }
    expect(await ask(parent, 'parent')).toBe(`${secret} 2 parent`)
    expect(await sh(parent, 'hostname')).toBe(`${parent.name}\n`)
  })
}

/** A long run says how far it is, and only when it got further: what hangs stays silent, and is ended for it. */
function sayHowManyRun(runtime: Runtime): Disposable {
  let said = 0
  const timer = setInterval(async () => {
    const running = (await Box.list(runtime)).filter(box => box.state === 'running').length
    if (running === said) return
    said = running
    console.log(`${running} boxes run`)
  }, SAY_EVERY_MS)
  return { [Symbol.dispose]: () => clearInterval(timer) }
}

/** A process that has something in its memory only: a secret of its own, and how often it was asked. */
async function startMemory(box: Box): Promise<void> {
  await sh(
    box,
    `mkfifo /tmp/ask /tmp/answer; (read secret < /proc/sys/kernel/random/uuid; n=0; while read input < /tmp/ask; do n=$((n+1)); echo "$secret $n $input" > /tmp/answer; done) </dev/null >/dev/null 2>&1 &`,
  )
}

const ask = async (box: Box, input: string): Promise<string> =>
  (await sh(box, `echo '${input}' > /tmp/ask; cat /tmp/answer`)).trim()

/** Not behind the moment, and not stuck in it; its server answers those who come anew, too, from inside and through its network. */
async function goesOnFrom(box: Box, moment: Progress): Promise<void> {
  const now = await progressOf(box)
  expect(now.journal).toBeGreaterThanOrEqual(moment.journal)
  expect(now.piped).toBeGreaterThanOrEqual(moment.piped)
  expect(now.asked).toBeGreaterThanOrEqual(moment.asked)
  await advances(box, now)
  expect(await sh(box, `echo hello | nc -w 60 127.0.0.1 ${LOAD_PORT} | head -n 1`)).toBe('hello 1\n')
  const stream = await box.connect(LOAD_PORT)
  stream.write('hello\n')
  const [answer] = (await once(stream, 'data')) as [Buffer]
  expect(answer.toString()).toBe('hello 1\n')
  stream.destroy()
}

interface ForkAnswer {
  readonly memory: string
  readonly sum: string
  readonly uuid: string
  readonly hostname: string
  readonly mac: string
  readonly address: string
}

async function askFork(fork: Box, input: string): Promise<ForkAnswer> {
  const out = await sh(
    fork,
    `echo '${input}' > /tmp/ask; cat /tmp/answer; echo '${input}' | sha256sum | cut -d ' ' -f 1; cat /proc/sys/kernel/random/uuid; hostname; cat /sys/class/net/eth0/address; ip -4 addr show dev eth0 | grep inet`,
  )
  const [memory, sum, uuid, hostname, mac, address] = out.split('\n')
  return { memory: memory!, sum: sum!, uuid: uuid!, hostname: hostname!, mac: mac!, address: address! }
}

/** A stopped box's disk, as QEMU reads it, to e2fsck. */
function cleanDisk(box: Box, raw: string): void {
  execFileSync('qemu-img', ['convert', '-O', 'raw', box.folder.disk, raw])
  execFileSync('e2fsck', ['-fn', raw], { stdio: 'pipe' })
  rmSync(raw)
}

async function listen(): Promise<{ server: Server; sockets: Socket[]; port: number }> {
  const sockets: Socket[] = []
  const server = createServer(socket => {
    sockets.push(socket)
    socket.on('error', () => {})
    socket.pause()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return { server, sockets, port: (server.address() as { port: number }).port }
}
