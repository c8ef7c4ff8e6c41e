/**
 * Each vCPU's slot in the shared memory: KVM's pages, mapped over it, and a page of control words.
 *
 *   +0x0000  struct kvm_run
 *   +0x1000  data of port accesses (kvm_run.io.data_offset points here)
 *   +0x2000  coalesced MMIO ring (unused)
 *   +0x3000  control words, plain shared memory
 */
import { mapSharedOver, unmapOver } from '../host/mapping.ts'
import { KVM_RUN_BASE, KVM_RUN_STRIDE } from '../memory/layout.ts'
import { KvmError } from './errors.ts'

/** What KVM maps on x86: three pages, since always. */
export const RUN_SIZE = 0x3000
const CONTROL_OFFSET = 0x3000

/** Where vCPU `index`'s slot is. */
export const runOffset = (index: number): number => KVM_RUN_BASE + index * KVM_RUN_STRIDE

/** Index in an Int32Array of the whole memory: the thread that is inside `run`, or 0. */
export const threadWord = (index: number): number => (runOffset(index) + CONTROL_OFFSET) / 4

export function mapRunArea(memory: Uint8Array, index: number, vcpuFd: number, size: number): void {
  if (size !== RUN_SIZE) {
    throw new KvmError('UNSUPPORTED', `KVM shares ${size} bytes per vCPU; ${RUN_SIZE} were expected on x86`)
  }
  mapSharedOver(memory, runOffset(index), RUN_SIZE, vcpuFd)
}

export function unmapRunArea(memory: Uint8Array, index: number): void {
  unmapOver(memory, runOffset(index), KVM_RUN_STRIDE)
}
