/**
 * vsock between a real guest and Node streams: long transfers each way, many connections, half-closes, readers that stall,
 * and a guest that reboots amid it all. VITRINE_VSOCK_MIB=1024 for the long way.
 */

import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { MachineOptions } from '../../src/machine/machine-options.ts'
import { connectToGuest, listenForGuest } from '../../src/virtio/vsock/host-api.ts'
import { compileProgram, TestGuest } from './guest.ts'
import { PatternCheck, patternStream } from './vsock-pattern.ts'

const MIB = 2 ** 20
/** Much more than all the buffers on the way, for readers that stall. */
const STALLED_BYTES = 8 * MIB

export interface VsockGuestOptions {
  readonly accel: NonNullable<MachineOptions['accel']>
  readonly limitMs: number
  readonly mebibytes: number
  readonly connections: number
}

/** Takes all that a stream has, and checks it. */
async function takeAll(stream: Duplex): Promise<PatternCheck> {
  const check = new PatternCheck()
  stream.on('data', (chunk: Buffer) => check.take(chunk))
  stream.resume()
  await once(stream, 'end')
  return check
}

/** As `takeAll`, and ends the other direction then. */
async function takeAndEnd(stream: Duplex): Promise<string> {
  const check = await takeAll(stream)
  stream.end()
  return check.verdict
}

async function textOf(stream: Duplex): Promise<string> {
  let text = ''
  stream.on('data', (chunk: Buffer) => {
    text += chunk.toString()
  })
  await once(stream, 'end')
  return text.trim()
}

export function describeVsock({ accel, limitMs, mebibytes, connections }: VsockGuestOptions): void {
  describe('vsock with a Linux guest', () => {
    const bytes = mebibytes * MIB
    let folder: string
    let path: string
    let program: Uint8Array
    const boot = (script: string): Promise<TestGuest> =>
      TestGuest.boot({
        accel,
        devices: [{ kind: 'vsock', cid: 11, path }],
        files: { 'bin/vsock-load': { content: program, mode: 0o755 } },
        script,
      })

    beforeAll(() => {
      folder = mkdtempSync(join(tmpdir(), 'vitrine-vsock-'))
      path = join(folder, 'v.sock')
      program = compileProgram(folder, 'vsock-load')
    })
    afterAll(() => rmSync(folder, { recursive: true }))

    it(
      `${mebibytes} MiB each way at once, ${connections} connections, half-closes, stalled readers, a reboot mid-stream`,
      async () => {
        const opened: Duplex[] = []
        const servers = [
          // Takes the guest's pattern, and answers when the guest has ended its direction.
          await listenForGuest(path, 201, stream => {
            void takeAll(stream).then(check => stream.end(check.verdict))
          }),
          await listenForGuest(path, 202, stream => void pipeline(patternStream(bytes), stream).catch(() => {})),
          await listenForGuest(path, 203, stream => {
            stream.on('error', () => {})
            stream.pipe(stream)
            opened.push(stream)
          }),
        ]
        const guest = await boot(`
vsock-load send 201 ${mebibytes} & vsock-load receive 202 & wait
vsock-load many 203 ${connections}
vsock-load serve ${mebibytes}
reboot -f`)
        let second: TestGuest | undefined
        try {
          // Guest to host and host to guest at once, both begun by the guest.
          const sent = await guest.printed(/SENT ([^\r\n]*)[\r\n]/, limitMs)
          expect(sent[1]!.trim()).toBe(`GOOD ${bytes}`)
          const received = await guest.printed(/RECEIVED ([^\r\n]*)[\r\n]/, limitMs)
          expect(received[1]!.trim()).toBe(`GOOD ${bytes}`)
          const many = await guest.printed(/MANY (\d+)\s/, limitMs)
          expect(Number(many[1])).toBe(connections)
          expect(opened).toHaveLength(connections)
          await guest.printed(/SERVING/, limitMs)

          // The same begun by the host: the answer comes through a stream whose other direction has ended.
          const sink = await connectToGuest(path, 101)
          const verdict = textOf(sink)
          const source = takeAndEnd(await connectToGuest(path, 100))
          await pipeline(patternStream(bytes), sink, { end: false })
          sink.end()
          expect(await verdict).toBe(`GOOD ${bytes}`)
          expect(await source).toBe(`GOOD ${bytes}`)

          // Connections from the host, twenty at a time.
          for (let done = 0; done < connections; done += 20) {
            await Promise.all(
              Array.from({ length: 20 }, async (_, i) => {
                const stream = await connectToGuest(path, 77)
                const echoed = textOf(stream)
                stream.end(`connection ${done + i}`)
                expect(await echoed).toBe(`connection ${done + i}`)
              }),
            )
          }

          // A reader in the guest that stalls holds the writer back, and then gets everything.
          const stalled = await connectToGuest(path, 102)
          const slow = textOf(stalled)
          await pipeline(patternStream(STALLED_BYTES), stalled, { end: false })
          stalled.end()
          expect(await slow).toBe(`GOOD ${STALLED_BYTES}`)
          // A reader on the host that stalls: the device keeps no more than the connection's credit.
          const held = await connectToGuest(path, 104)
          held.pause()
          await sleep(1500)
          const metrics = await guest.device('vsock').metrics()
          expect(metrics.bufferedBytes).toBeLessThanOrEqual(128 * 1024)
          expect(await takeAndEnd(held)).toBe(`GOOD ${STALLED_BYTES}`)

          // Nothing is left of all these.
          for (let i = 0; i < 100 && (await guest.device('vsock').metrics()).connections !== 0; i++) await sleep(50)
          const after = await guest.device('vsock').metrics()
          expect(after).toMatchObject({ connections: 0, bufferedBytes: 0, guestFaults: 0, badPackets: 0 })

          // The guest restarts while a stream runs: both directions end, and nobody waits for ever.
          const endless = await connectToGuest(path, 101)
          const broken = pipeline(patternStream(2 ** 40), endless).catch(() => 'ended')
          const cut = await connectToGuest(path, 100)
          const cutOff = Promise.race([once(cut, 'end'), once(cut, 'close')]).catch(() => 'an error is an end, too')
          cut.once('data', () => cut.pause())
          await once(cut, 'data')
          void connectToGuest(path, 103).then(stream => stream.on('error', () => {}))
          expect(await guest.ended(limitMs)).toMatchObject({ reason: 'reboot' })
          await guest.close()
          cut.resume()
          expect(await broken).toBe('ended')
          await cutOff

          second = await boot('vsock-load serve 1')
          await second.printed(/SERVING/, limitMs)
          expect(await takeAndEnd(await connectToGuest(path, 100))).toBe(`GOOD ${MIB}`)
          expect(guest.reports).toEqual([])
        } finally {
          await guest.close()
          await second?.close()
          for (const server of servers) server.close()
        }
      },
      limitMs * 4,
    )
  })
}
