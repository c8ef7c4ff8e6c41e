/**
 * Where the software CPU keeps its things in the shared memory, from SOFT_CPU_BASE up:
 *
 *   states of 8 vCPUs | chips | inbox | doorbells | dirty log | a vCPU each: TLBs, jump caches, proofs |
 *   head of the code | code-page maps | a vCPU each: block hash, page lists | arenas
 *
 * The second line, of a machine with one vCPU, is what saved-code.ts keeps with a snapshot.
 */
import {
  CHIPS_SIZE,
  MAX_VCPUS,
  PROOFS,
  REGION_CACHE_ENTRIES,
  S_ARENA,
  S_ARENA_END,
  S_ARENA_NEXT,
  S_ATTENTION,
  S_BLOCK_HASH,
  S_CHIPS,
  S_CODE_PAGES,
  S_CPUS,
  S_DIRTY_MAP,
  S_INDEX,
  S_JUMP_CACHE,
  S_OPTIONS,
  S_PAGE_BLOCKS,
  S_PROOFS,
  S_RAM_HIGH,
  S_RAM_LOW,
  S_RAM_OFFSET,
  S_RAM_PAGES,
  S_REGION_CACHE,
  S_TLB_KERNEL,
  S_TLB_USER,
  S_TSC_KHZ,
  VCPU_STATE_SIZE,
} from '../../wasm/cpu/state.ts'
import type { GuestMemory } from '../memory/guest-memory.ts'
import { MIB, RAM_OFFSET, SOFT_CPU_BASE, SOFT_CPU_END } from '../memory/layout.ts'

export const vcpuStateBase = (index: number): number => SOFT_CPU_BASE + index * VCPU_STATE_SIZE

export const CHIPS_BASE = SOFT_CPU_BASE + MAX_VCPUS * VCPU_STATE_SIZE
/** Words of an Int32Array: what waits for the end of a slice in lockstep, interrupt lines and whether the vCPU is to leave the guest. */
export const INBOX_LINES = (CHIPS_BASE + 0x800) >> 2
export const INBOX_KICK = INBOX_LINES + 1
/** u32 count, then entries of f64 address, u32 match, i32 descriptor. */
export const DOORBELLS_BASE = CHIPS_BASE + 0x1000
export const MAX_DOORBELLS = 255
const DIRTY_BASE = CHIPS_BASE + 0x1_0000
const PRIVATE_BASE = DIRTY_BASE + 0x2_0000

const TLB_BYTES = 4096 * 32
const JUMP_CACHE_BYTES = 4096 * 16
const REGION_CACHE_BYTES = REGION_CACHE_ENTRIES * 16
const PROOF_BYTES = PROOFS * 16
const BLOCK_HASH_BYTES = 65536 * 4
/** More than this for blocks does not pay: a boot uses about 16 MiB. */
const LARGEST_ARENA = 40 * MIB
const PAGE = 4096
/** Before the code-page maps: what saved code says of itself. */
export const CODE_HEAD_BYTES = PAGE

export const dirtyMapBase = DIRTY_BASE
/** Index of vCPU `index`'s attention word in an Int32Array over the shared memory. */
export const attentionIndex = (index: number): number => (vcpuStateBase(index) + S_ATTENTION) >> 2

/** Writes the constants of every vCPU's state. Done once, before any vCPU is opened. */
export function layOut(memory: GuestMemory, cpus: number, deterministic: boolean): void {
  const { view } = memory
  const pages = memory.size / PAGE
  const [low, high] = memory.regions
  let next = PRIVATE_BASE
  const take = (bytes: number): number => {
    const at = next
    next += Math.ceil(bytes / PAGE) * PAGE
    return at
  }
  const caches = Array.from({ length: cpus }, () => ({
    kernel: take(TLB_BYTES),
    user: take(TLB_BYTES),
    jumps: take(JUMP_CACHE_BYTES),
    regions: take(REGION_CACHE_BYTES),
    proofs: take(PROOF_BYTES),
  }))
  take(CODE_HEAD_BYTES)
  const codePages = take(pages * 4 * cpus)
  const areas = caches.map(cache => ({ ...cache, hash: take(BLOCK_HASH_BYTES), lists: take(pages * 4) }))
  const arenaBytes = Math.min(LARGEST_ARENA, Math.floor((SOFT_CPU_END - next) / cpus / PAGE) * PAGE)
  for (const [index, area] of areas.entries()) {
    const base = vcpuStateBase(index)
    const put = (offset: number, value: number): void => view.setUint32(base + offset, value, true)
    put(S_RAM_LOW, low!.size)
    put(S_RAM_HIGH, high?.size ?? 0)
    put(S_RAM_OFFSET, RAM_OFFSET)
    put(S_RAM_PAGES, pages)
    put(S_INDEX, index)
    put(S_CPUS, cpus)
    put(S_TLB_KERNEL, area.kernel)
    put(S_TLB_USER, area.user)
    put(S_JUMP_CACHE, area.jumps)
    put(S_REGION_CACHE, area.regions)
    put(S_PROOFS, area.proofs)
    put(S_BLOCK_HASH, area.hash)
    put(S_PAGE_BLOCKS, area.lists)
    put(S_CODE_PAGES, codePages)
    const arena = take(arenaBytes)
    put(S_ARENA, arena)
    put(S_ARENA_NEXT, arena)
    put(S_ARENA_END, arena + arenaBytes)
    put(S_CHIPS, CHIPS_BASE)
    put(S_DIRTY_MAP, 0)
    put(S_OPTIONS, deterministic ? 1 : 0)
    put(S_TSC_KHZ, 1_000_000)
  }
  memory.bytes.fill(0, CHIPS_BASE, CHIPS_BASE + CHIPS_SIZE)
}
