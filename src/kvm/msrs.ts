/** Model-specific registers: reading and writing lists of them, and the values that a CPU has at boot. */
import { KvmError } from './errors.ts'
import { ioctl } from './ioctl.ts'
import { MSR_ENTRY, MSRS } from './structs.ts'

export interface Msr {
  readonly index: number
  readonly value: bigint
}

export const MSR_TSC = 0x10
export const MSR_TSC_DEADLINE = 0x6e0

/** SDM volume 4; the values that Linux expects of firmware. */
export const BOOT_MSRS: readonly Msr[] = [
  { index: 0x174, value: 0n }, // SYSENTER_CS
  { index: 0x175, value: 0n }, // SYSENTER_ESP
  { index: 0x176, value: 0n }, // SYSENTER_EIP
  { index: 0xc0000081, value: 0n }, // STAR
  { index: 0xc0000082, value: 0n }, // LSTAR
  { index: 0xc0000083, value: 0n }, // CSTAR
  { index: 0xc0000084, value: 0n }, // SFMASK
  { index: 0xc0000102, value: 0n }, // KERNEL_GS_BASE
  { index: MSR_TSC, value: 0n },
  { index: 0x1a0, value: 1n }, // MISC_ENABLE: fast string operations
  { index: 0x2ff, value: 0x806n }, // MTRRdefType: enabled, write-back by default
]

/** KVM copies at most this many in one request. */
const BATCH = 256

function encode(msrs: readonly Msr[]): Uint8Array {
  const list = MSRS.create(msrs.length * MSR_ENTRY.size).set('nmsrs', msrs.length)
  msrs.forEach(({ index, value }, i) => {
    const at = MSRS.size + i * MSR_ENTRY.size
    MSR_ENTRY.over(list.bytes.subarray(at, at + MSR_ENTRY.size))
      .set('index', index)
      .set('data', value)
  })
  return list.bytes
}

/** The registers among `indices` that this vCPU has. */
export function getMsrs(fd: number, indices: readonly number[]): Msr[] {
  const result: Msr[] = []
  let wanted = [...indices]
  while (wanted.length > 0) {
    const batch = wanted.slice(0, BATCH)
    const bytes = encode(batch.map(index => ({ index, value: 0n })))
    // A short count is the index of the first register that could not be read: it is left out, and the rest asked again.
    const count = ioctl(fd, 'KVM_GET_MSRS', bytes)
    for (let i = 0; i < count; i++) {
      const at = MSRS.size + i * MSR_ENTRY.size
      const entry = MSR_ENTRY.over(bytes.subarray(at, at + MSR_ENTRY.size))
      result.push({ index: entry.get('index'), value: entry.get('data') })
    }
    wanted = wanted.slice(count === batch.length ? count : count + 1)
  }
  return result
}

/** Writes all of them. One that is refused is no failure if it already has its value: some are read-only. */
export function setMsrs(fd: number, msrs: readonly Msr[]): void {
  let rest = [...msrs]
  while (rest.length > 0) {
    const batch = rest.slice(0, BATCH)
    const count = ioctl(fd, 'KVM_SET_MSRS', encode(batch))
    if (count < batch.length) {
      const { index, value } = batch[count]!
      const current = getMsrs(fd, [index])[0]?.value
      if (current !== value) {
        const has = current === undefined ? 'it does not exist' : `it stays 0x${current.toString(16)}`
        throw new KvmError('UNSUPPORTED', `KVM refuses MSR 0x${index.toString(16)} = 0x${value.toString(16)}: ${has}`)
      }
    }
    rest = rest.slice(count === batch.length ? count : count + 1)
  }
}
