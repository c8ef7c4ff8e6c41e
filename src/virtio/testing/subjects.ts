/** Every device with what tests for all of them need: how to make it, how to make it look at a queue, whether it works. */
import { mkdtempSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { closeFd } from '../../host/file.ts'
import { check, sys } from '../../host/libc.ts'
import { acceptUnix, connectUnix, listenUnix, readBytes, writeBytes } from '../../host/unix-socket.ts'
import { BalloonDevice } from '../balloon/device.ts'
import { BlkDevice } from '../blk/device.ts'
import { ConsoleDevice } from '../console/device.ts'
import type { SavedValue } from '../device.ts'
import { NetDevice } from '../net/device.ts'
import { LoopbackLink } from '../net/loopback.ts'
import { RngDevice } from '../rng/device.ts'
import { FIRST_HOST_PORT } from '../vsock/config.ts'
import { VsockDevice } from '../vsock/device.ts'
import { HEADER_SIZE, OP_RW } from '../vsock/packet.ts'
import { type BenchOptions, DeviceBench } from './bench.ts'
import { blkHeader, IN, request } from './blk-driver.ts'
import { RawFile } from './raw-file.ts'
import { GUEST_CID, packetBytes } from './vsock-driver.ts'

export interface Mounted {
  readonly bench: DeviceBench
  /** Makes the device look for a buffer in `queue`, from the host's side or through another queue. */
  provoke(queue: number): void
  /** After `driver.start`: does something ordinary and tells whether it went well. */
  works(): boolean
  close(): void
}

export interface Subject {
  readonly name: string
  readonly queues: number
  /** The queues that the device looks at without a restore. */
  readonly attackable: readonly number[]
  /** Bytes that a request of this device may start with. */
  requestHead(random: () => number): Uint8Array
  /** Requests of the machine's owner. */
  controls(random: () => number): SavedValue[]
  mount(options?: BenchOptions): Mounted
}

function onBench(
  bench: DeviceBench,
  parts: Partial<Mounted> & Pick<Mounted, 'works'>,
  cleanup = (): void => {},
): Mounted {
  return {
    bench,
    provoke: queue => bench.driver.queues[queue]?.ring(),
    close: () => {
      bench.close()
      cleanup()
    },
    ...parts,
  }
}

function pipe(): [number, number] {
  const ends = new Int32Array(2)
  check(sys.pipe2(ends, 0o4000), 'pipe2')
  return [ends[0]!, ends[1]!]
}

/** Adds a chain to `queue`, rings, runs; the lengths that came back. */
function roundTrip(
  bench: DeviceBench,
  queue: number,
  ...segments: { address: number; length: number; write?: boolean }[]
): number[] {
  bench.driver.queues[queue]!.add(segments)
  bench.driver.queues[queue]!.kick()
  bench.run()
  return bench.driver.queues[queue]!.takeUsed().map(used => used.length)
}

/** Whether one more request fits into `queue`; if not, rings it. */
function hasRoom(bench: DeviceBench, queue: number): boolean {
  const target = bench.driver.queues[queue]!
  if (target.freeDescriptors === 0) target.takeUsed()
  if (target.freeDescriptors > 0) return true
  target.ring()
  return false
}

const rng: Subject = {
  name: 'rng',
  queues: 1,
  attackable: [0],
  requestHead: () => new Uint8Array(0),
  controls: () => [],
  mount: options => {
    const bench = new DeviceBench(new RngDevice(), options)
    return onBench(bench, { works: () => roundTrip(bench, 0, bench.driver.space(32))[0] === 32 })
  },
}

const blk: Subject = {
  name: 'blk',
  queues: 2,
  attackable: [0, 1],
  requestHead: random => blkHeader([0, 1, 4, 8, 11, 13, 99][Math.floor(random() * 7)]!, Math.floor(random() * 300)),
  controls: () => [],
  mount: options => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-subject-'))
    const path = join(folder, 'disk')
    writeFileSync(path, '')
    truncateSync(path, 1 << 17)
    const bench = new DeviceBench(new BlkDevice(new RawFile(path), { queues: 2 }), options)
    return onBench(bench, { works: () => request(bench, IN, 3, bench.driver.space(512)) === 0 }, () =>
      rmSync(folder, { recursive: true }),
    )
  },
}

/** Processes of the host that use the device's sockets: each `act` does the next of the things that they do. */
class VsockPeers {
  readonly #path: string
  readonly #listener: number
  readonly #streams: number[] = []
  readonly #bytes = new Uint8Array(10_000).fill(0x6b)
  #turn = 0

  constructor(path: string) {
    this.#path = path
    this.#listener = listenUnix(`${path}_52`)
  }

  act(): void {
    const turn = this.#turn++
    const stream = this.#streams.at(turn % Math.max(1, this.#streams.length))
    if (turn % 7 === 0) this.#keep(acceptUnix(this.#listener))
    else if (turn % 7 === 1 && this.#streams.length < 20) this.#connect(turn)
    else if (stream === undefined) return
    else if (turn % 7 === 6) this.#end(stream)
    else if (turn % 3 === 0) readBytes(stream, this.#bytes)
    else writeBytes(stream, this.#bytes.subarray(0, turn % 3 === 1 ? 10 : 10_000))
  }

  #connect(turn: number): void {
    const fd = connectUnix(this.#path)
    this.#keep(fd)
    if (fd >= 0) writeBytes(fd, new TextEncoder().encode(`CONNECT ${1 + (turn % 3)}\n`))
  }

  #keep(fd: number): void {
    if (fd >= 0) this.#streams.push(fd)
  }

  #end(fd: number): void {
    this.#streams.splice(this.#streams.indexOf(fd), 1)
    closeFd(fd)
  }

  close(): void {
    for (const fd of this.#streams) closeFd(fd)
    closeFd(this.#listener)
  }
}

const vsock: Subject = {
  name: 'vsock',
  queues: 3,
  attackable: [0, 1],
  requestHead: random => {
    const oneOf = (...values: number[]): number => values[Math.floor(random() * values.length)]!
    return packetBytes({
      op: oneOf(0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 99),
      srcPort: oneOf(1, 2, 3),
      dstPort: oneOf(52, 52, 53, FIRST_HOST_PORT + 1, FIRST_HOST_PORT + 2),
      flags: oneOf(0, 1, 2, 3),
      length: oneOf(0, 1, 100, 5000, 0xffff_ffff),
      bufAlloc: oneOf(0, 4096, 1 << 18, 0xffff_ffff),
      fwdCnt: oneOf(0, 1, 1000, 0xffff_ffff),
      type: oneOf(1, 1, 1, 1, 2),
      srcCid: oneOf(GUEST_CID, GUEST_CID, GUEST_CID, 9),
    })
  },
  controls: () => [],
  mount: options => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-subject-'))
    const path = join(folder, 'v.sock')
    const bench = new DeviceBench(new VsockDevice({ cid: GUEST_CID, path }), options)
    const peers = new VsockPeers(path)
    const unknown = (): void => {
      if (!hasRoom(bench, 1)) return
      bench.driver.queues[1]!.add([bench.driver.buffer(packetBytes({ op: OP_RW, srcPort: 1, dstPort: 2 }))])
      bench.driver.queues[1]!.ring()
    }
    return onBench(
      bench,
      {
        // An answer to nobody makes it look for a receive buffer.
        provoke: queue => {
          peers.act()
          if (queue === 0) unknown()
          else bench.driver.queues[queue]!.ring()
        },
        works: () => {
          bench.driver.queues[0]!.add([bench.driver.space(4096)])
          unknown()
          bench.run()
          return bench.driver.queues[0]!.takeUsed()[0]?.length === HEADER_SIZE
        },
      },
      () => {
        peers.close()
        rmSync(folder, { recursive: true })
      },
    )
  },
}

const console: Subject = {
  name: 'console',
  queues: 2,
  attackable: [0, 1],
  requestHead: () => new TextEncoder().encode('output'),
  controls: random => [{ resize: [1 + Math.floor(random() * 200), 40] }],
  mount: options => {
    const [inputFd, input] = pipe()
    const [output, outputFd] = pipe()
    const bench = new DeviceBench(new ConsoleDevice({ inputFd, outputFd }), options)
    const type = (): void => void writeBytes(input, new Uint8Array([65]))
    return onBench(
      bench,
      {
        provoke: queue => {
          type()
          bench.driver.queues[queue]!.ring()
        },
        works: () => {
          type()
          return roundTrip(bench, 0, bench.driver.space(10_000))[0]! > 0
        },
      },
      () => [inputFd, input, output, outputFd].forEach(closeFd),
    )
  },
}

const net: Subject = {
  name: 'net',
  queues: 2,
  attackable: [0, 1],
  requestHead: random => {
    const head = new Uint8Array(12)
    if (random() < 0.5) for (let i = 0; i < 10; i++) head[i] = Math.floor(random() * 8)
    return head
  },
  controls: random => [{ up: random() < 0.8 }],
  mount: options => {
    const bench = new DeviceBench(new NetDevice(new LoopbackLink({ limit: 8 }), { mac: '02:00:00:00:00:01' }), options)
    const send = (): void => {
      if (!hasRoom(bench, 1)) return
      bench.driver.queues[1]!.add([bench.driver.buffer(new Uint8Array(72))])
      bench.driver.queues[1]!.ring()
    }
    return onBench(bench, {
      provoke: queue => (queue === 0 ? send() : bench.driver.queues[queue]!.ring()),
      works: () => {
        bench.device.control?.({ up: true })
        bench.driver.queues[0]!.add([bench.driver.space(2048)])
        bench.driver.queues[0]!.kick()
        send()
        bench.run()
        return bench.driver.queues[0]!.takeUsed()[0]?.length === 72
      },
    })
  },
}

const balloon: Subject = {
  name: 'balloon',
  queues: 4,
  attackable: [0, 1, 2, 3],
  requestHead: random =>
    new Uint8Array(Uint32Array.from([Math.floor(random() * 2 ** 32), 6000 + Math.floor(random() * 100)]).buffer),
  controls: random => [{ targetMib: Math.floor(random() * 8) }, { stats: true }],
  mount: options => {
    const bench = new DeviceBench(new BalloonDevice(), options)
    return onBench(bench, {
      works: () => roundTrip(bench, 0, bench.driver.buffer(new Uint8Array(new Uint32Array([7000]).buffer)))[0] === 0,
    })
  },
}

export const SUBJECTS: readonly Subject[] = [rng, blk, vsock, console, net, balloon]
