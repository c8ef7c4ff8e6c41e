/**
 * The accesses of one guest on two CPUs: the leader's go to the machine and are written down, the follower's get the same answers
 * and must be the same accesses.
 */
import type { IoHandler } from '../accel/contract.ts'

type AccessKind = 'in' | 'out' | 'load' | 'store'

interface Access {
  readonly kind: AccessKind
  readonly address: number
  readonly size: number
  readonly value: bigint
  /** Whether the machine wanted to stop after it. */
  readonly stops: boolean
}

const describe = ({ kind, address, size, value }: Access): string =>
  `${kind} 0x${address.toString(16)}/${size} = 0x${value.toString(16)}`

const isWrite = (kind: AccessKind): boolean => kind === 'out' || kind === 'store'

function numberIn(data: DataView, size: number): bigint {
  let value = 0n
  for (let at = size - 1; at >= 0; at--) value = (value << 8n) | BigInt(data.getUint8(at))
  return value
}

/** What the leader did and the follower has not done yet. */
export class AccessLog {
  readonly #accesses: Access[] = []
  #difference: string | undefined

  /** The first access that was not the same. */
  get difference(): string | undefined {
    if (this.#difference !== undefined) return this.#difference
    const [left] = this.#accesses
    return left === undefined ? undefined : `only the interpreter made the access: ${describe(left)}`
  }

  clear(): void {
    this.#accesses.length = 0
    this.#difference = undefined
  }

  /** The leader's handler: `io`, written down. */
  leader(io: IoHandler): IoHandler {
    const note = (kind: AccessKind, address: number, size: number, value: bigint): void => {
      this.#accesses.push({ kind, address, size, value, stops: isWrite(kind) && io.stopRequested })
    }
    return {
      portRead: (port, size) => {
        const value = io.portRead(port, size)
        note('in', port, size, BigInt(value >>> 0))
        return value
      },
      portWrite: (port, size, value) => {
        io.portWrite(port, size, value)
        note('out', port, size, BigInt(value))
      },
      mmioRead: (address, size, data) => {
        io.mmioRead(address, size, data)
        note('load', address, size, numberIn(data, size))
      },
      mmioWrite: (address, size, data) => {
        const value = numberIn(data, size)
        io.mmioWrite(address, size, data)
        note('store', address, size, value)
      },
      get stopRequested() {
        return io.stopRequested
      },
    }
  }

  /** The follower's handler: nothing reaches the machine a second time. */
  follower(): IoHandler {
    let stops = false
    const same = (kind: AccessKind, address: number, size: number, value?: bigint): bigint => {
      const expected = this.#accesses.shift()
      const made = { kind, address, size, value: value ?? 0n, stops: false }
      if (expected === undefined) this.#difference ??= `only compiled code made the access: ${describe(made)}`
      else if (
        expected.kind !== kind ||
        expected.address !== address ||
        expected.size !== size ||
        (value !== undefined && value !== expected.value)
      )
        this.#difference ??= `the accesses ${describe(expected)} and ${describe(made)}`
      stops = expected?.stops ?? false
      return expected?.value ?? 0n
    }
    return {
      portRead: (port, size) => Number(same('in', port, size)),
      portWrite: (port, size, value) => void same('out', port, size, BigInt(value)),
      mmioRead: (address, size, data) => {
        const value = same('load', address, size)
        for (let at = 0; at < size; at++) data.setUint8(at, Number((value >> BigInt(8 * at)) & 0xffn))
      },
      mmioWrite: (address, size, data) => void same('store', address, size, numberIn(data, size)),
      get stopRequested() {
        return stops
      },
    }
  }
}
