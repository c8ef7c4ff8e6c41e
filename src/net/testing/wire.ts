/**
 * A tap device in a network namespace of its own: the Linux kernel is the guest at the other end of the stack's wire.
 * Frames can be lost, doubled, delayed and reordered on the way, by a seed.
 */
import { spawn, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { closeFd } from '../../host/file.ts'
import { IoVector } from '../../host/io-vector.ts'
import { POLLIN, PollSet } from '../../host/poll.ts'
import { readSocketBytes, writeSocketBytes } from '../../host/socket.ts'
import { openTap } from '../../host/tap.ts'
import type { NetworkDescription } from '../description.ts'
import type { OffloadHeader } from '../link.ts'
import { NetworkStack, type StackOptions } from '../stack.ts'

const VNET_HEADER = 10
const MAX_FRAME = 65_600

/** Why there can be no wire here; undefined when there can. */
export function wireUnavailable(): string | undefined {
  if (process.platform !== 'linux' || process.getuid?.() !== 0) return 'needs root on Linux'
  if (!existsSync('/dev/net/tun')) return 'needs /dev/net/tun'
  const name = `vitrine-try-${process.pid}`
  if (spawnSync('ip', ['netns', 'add', name]).status !== 0) return 'needs network namespaces (ip netns add)'
  spawnSync('ip', ['netns', 'del', name])
  return undefined
}

export interface Impairment {
  readonly seed: number
  /** Probabilities. */
  readonly loss?: number
  readonly duplicate?: number
  readonly reorder?: number
  /** Milliseconds on the way, up to this many, at random; so frames overtake each other. */
  readonly delay?: number
}

export interface WireOptions {
  readonly offloads?: boolean
  readonly description?: NetworkDescription
  readonly stack?: StackOptions
  readonly impairment?: Impairment
  /** Addresses by hand; false leaves the interface bare, for DHCP. */
  readonly configure?: boolean
}

/** Mulberry32: small, seeded, good enough to drop frames by. */
export function randomOf(seed: number): () => number {
  let state = seed >>> 0
  return () => {
    state = (state + 0x6d2b_79f5) >>> 0
    let t = state
    t = Math.imul(t ^ (t >>> 15), t | 1)
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61)
    return ((t ^ (t >>> 14)) >>> 0) / 0x1_0000_0000
  }
}

let wires = 0

export interface Outcome {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

export class Wire {
  readonly stack: NetworkStack
  readonly namespace = `vitrine-${process.pid}-${wires++}`
  readonly poll = new PollSet()
  readonly #fd: number
  readonly #offloads: boolean
  readonly #memory = new Uint8Array(new SharedArrayBuffer(2 * MAX_FRAME))
  readonly #in = new IoVector(this.#memory)
  readonly #out = new IoVector(this.#memory)
  readonly #view = new DataView(this.#memory.buffer)
  readonly #header: OffloadHeader = {
    flags: 0,
    gsoType: 0,
    headerLength: 0,
    gsoSize: 0,
    checksumStart: 0,
    checksumOffset: 0,
  }
  readonly #random: () => number
  readonly #impairment: Impairment
  /** Frames that are on their way. */
  readonly #slow: { readonly toGuest: boolean; readonly bytes: Uint8Array; readonly at: number }[] = []
  /** Frames that are kept back, to come after later ones: [to the guest, bytes]. */
  readonly #late: { readonly toGuest: boolean; readonly bytes: Uint8Array; after: number }[] = []

  constructor(options: WireOptions = {}) {
    this.#offloads = options.offloads ?? true
    this.#impairment = options.impairment ?? { seed: 1 }
    this.#random = randomOf(this.#impairment.seed)
    const description = { policy: { allow: ['*', 'host.vitrine.internal'] }, ...options.description }
    this.stack = new NetworkStack(description, options.stack)
    const name = `vt${process.pid % 100_000}x${wires}`
    const ip = (...args: string[]): void => {
      const { status, stderr } = spawnSync('ip', args, { encoding: 'utf8' })
      if (status !== 0) throw new Error(`ip ${args.join(' ')}: ${stderr}`)
    }
    ip('netns', 'add', this.namespace)
    this.#fd = openTap(name, this.#offloads)
    ip('link', 'set', name, 'netns', this.namespace)
    const inside = (...args: string[]): void => ip('-n', this.namespace, ...args)
    inside('link', 'set', name, 'name', 'eth0')
    inside('link', 'set', 'lo', 'up')
    if (options.configure !== false) {
      inside('addr', 'add', '10.0.2.15/24', 'dev', 'eth0')
      inside('-6', 'addr', 'add', 'fd76:6974:7269::15/64', 'dev', 'eth0', 'nodad')
    }
    this.poll.add(this.#fd, POLLIN, () => this.#fromKernel())
    const guest = { checksum: this.#offloads, segments4: this.#offloads, segments6: this.#offloads }
    this.stack.start(this.poll, () => this.#toKernel(), guest)
    inside('link', 'set', 'eth0', 'up')
    if (options.configure !== false) {
      inside('route', 'add', 'default', 'via', '10.0.2.2')
      inside('-6', 'route', 'add', 'default', 'via', 'fd76:6974:7269::2')
    }
  }

  get #prefix(): number {
    return this.#offloads ? VNET_HEADER : 0
  }

  #fromKernel(): void {
    for (let i = 0; i < 64; i++) {
      const length = readSocketBytes(this.#fd, this.#memory.subarray(0, MAX_FRAME))
      if (length <= 0) break
      this.#impair(false, this.#memory.subarray(0, length))
    }
    this.#toKernel()
  }

  /** Passes one frame on, or not, or twice, or later. */
  #impair(toGuest: boolean, bytes: Uint8Array): void {
    const { loss = 0, duplicate = 0, reorder = 0 } = this.#impairment
    const late = this.#late.filter(frame => frame.toGuest === toGuest && --frame.after <= 0)
    if (this.#random() >= loss) {
      if (this.#random() < reorder)
        this.#late.push({ toGuest, bytes: bytes.slice(), after: 1 + Math.floor(this.#random() * 4) })
      else {
        const copy = this.#random() < duplicate ? bytes.slice() : undefined
        this.#deliver(toGuest, bytes)
        if (copy) this.#deliver(toGuest, copy)
      }
    }
    for (const frame of late) {
      this.#late.splice(this.#late.indexOf(frame), 1)
      this.#deliver(toGuest, frame.bytes)
    }
  }

  #deliver(toGuest: boolean, bytes: Uint8Array): void {
    const { delay = 0 } = this.#impairment
    if (delay === 0) this.#arrive(toGuest, bytes)
    else this.#slow.push({ toGuest, bytes: bytes.slice(), at: performance.now() + this.#random() * delay })
  }

  /** What has been on its way for long enough. */
  #arrivals(): void {
    if (this.#slow.length === 0) return
    const now = performance.now()
    const due = this.#slow.filter(({ at }) => at <= now).sort((a, b) => a.at - b.at)
    for (const frame of due) {
      this.#slow.splice(this.#slow.indexOf(frame), 1)
      this.#arrive(frame.toGuest, frame.bytes)
    }
    this.#toKernel()
  }

  #arrive(toGuest: boolean, bytes: Uint8Array): void {
    if (toGuest) {
      writeSocketBytes(this.#fd, bytes)
      return
    }
    if (bytes.buffer !== this.#memory.buffer) this.#memory.set(bytes)
    const length = bytes.length
    const header = this.#header
    header.flags = 0
    header.gsoType = 0
    if (this.#offloads) {
      header.flags = this.#memory[0]!
      header.gsoType = this.#memory[1]!
      header.headerLength = this.#view.getUint16(2, true)
      header.gsoSize = this.#view.getUint16(4, true)
      header.checksumStart = this.#view.getUint16(6, true)
      header.checksumOffset = this.#view.getUint16(8, true)
    }
    this.#in.clear()
    this.#in.push(this.#prefix, length - this.#prefix)
    this.stack.send(this.#in, header)
  }

  #toKernel(): void {
    const { stack } = this
    for (let i = 0; i < 4096; i++) {
      const length = stack.nextLength
      if (length === 0) return
      this.#out.clear()
      const at = MAX_FRAME + this.#prefix
      // In pieces, as a guest's buffers would be.
      const head = Math.min(length, 1500)
      this.#out.push(at, head)
      if (length > head) this.#out.push(at + head, length - head)
      const header = this.#header
      Object.assign(header, { flags: 0, gsoType: 0, headerLength: 0, gsoSize: 0, checksumStart: 0, checksumOffset: 0 })
      stack.receive(this.#out, header)
      if (this.#offloads) {
        this.#memory[MAX_FRAME] = header.flags
        this.#memory[MAX_FRAME + 1] = header.gsoType
        this.#view.setUint16(MAX_FRAME + 2, header.headerLength, true)
        this.#view.setUint16(MAX_FRAME + 4, header.gsoSize, true)
        this.#view.setUint16(MAX_FRAME + 6, header.checksumStart, true)
        this.#view.setUint16(MAX_FRAME + 8, header.checksumOffset, true)
      }
      this.#impair(true, this.#memory.subarray(MAX_FRAME, at + length))
    }
  }

  /** Runs the stack's loop, and Node's, until `done` or the limit. */
  async turn(done: () => boolean, limitMs = 20_000): Promise<void> {
    const end = Date.now() + limitMs
    while (!done()) {
      if (Date.now() > end) throw new Error(`the wire was not done after ${limitMs} ms`)
      // Some turns of the stack's loop for one of Node's, which would be most of the time.
      const pause = performance.now() + 3
      do {
        if (this.poll.wait(0) === 0) this.poll.wait(1)
        this.#arrivals()
      } while (performance.now() < pause && !done())
      await new Promise(resolve => setImmediate(resolve))
    }
  }

  /** Runs a command in the guest's namespace. */
  async run(command: readonly string[], limitMs = 20_000, input?: Buffer): Promise<Outcome> {
    const child = spawn('ip', ['netns', 'exec', this.namespace, ...command], { stdio: ['pipe', 'pipe', 'pipe'] })
    let stdout = ''
    let stderr = ''
    let status: number | null | undefined
    child.stdout.setEncoding('latin1').on('data', (text: string) => {
      stdout += text
    })
    child.stderr.setEncoding('latin1').on('data', (text: string) => {
      stderr += text
    })
    child.stdin.on('error', () => {})
    child.stdin.end(input)
    child.on('close', code => {
      status = code
    })
    try {
      await this.turn(() => status !== undefined, limitMs)
    } catch (error) {
      child.kill('SIGKILL')
      throw new Error(`${command.join(' ')}: ${(error as Error).message}\n${stdout}${stderr}`)
    }
    return { status: status ?? null, stdout, stderr }
  }

  close(): void {
    this.stack.close()
    this.poll.close()
    closeFd(this.#fd)
    spawnSync('ip', ['netns', 'del', this.namespace])
  }
}
