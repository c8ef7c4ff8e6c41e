/**
 * Which CPU a snapshot of a running machine needs: programs in it have looked at CPUID and use what they found, so a host
 * must offer at least that. Feature names are those of /proc/cpuinfo.
 */
import { createHash } from 'node:crypto'
import { SnapshotError } from './errors.ts'

export interface CpuidLeaf {
  readonly leaf: number
  readonly subleaf: number
  readonly eax: number
  readonly ebx: number
  readonly ecx: number
  readonly edx: number
}

export interface CpuNeeds {
  readonly vendor: string
  readonly features: readonly string[]
  /** Of the leaves that say what the CPU can do: equal digests need no closer look. */
  readonly digest: string
}

type Register = 'eax' | 'ebx' | 'ecx' | 'edx'

/** Names by bit, from 0; an empty one is a bit that means nothing to a program, or changes with the CPU that it is read on. */
const WORDS: readonly (readonly [leaf: number, subleaf: number, register: Register, names: string])[] = [
  [
    1,
    0,
    'edx',
    'fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn clflush - dts acpi mmx fxsr sse sse2 ss - tm ia64 pbe',
  ],
  [
    1,
    0,
    'ecx',
    'pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma cx16 xtpr pdcm - pcid dca sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave - avx f16c rdrand -',
  ],
  [
    7,
    0,
    'ebx',
    'fsgsbase tsc_adjust sgx bmi1 hle avx2 fdp_excptn_only smep bmi2 erms invpcid rtm cqm - mpx rdt_a avx512f avx512dq rdseed adx smap avx512ifma - clflushopt clwb intel_pt avx512pf avx512er avx512cd sha_ni avx512bw avx512vl',
  ],
  [
    7,
    0,
    'ecx',
    'prefetchwt1 avx512vbmi umip pku - waitpkg avx512_vbmi2 shstk gfni vaes vpclmulqdq avx512_vnni avx512_bitalg tme avx512_vpopcntdq - la57 - - - - - rdpid - bus_lock_detect cldemote - movdiri movdir64b enqcmd - pks',
  ],
  [
    7,
    0,
    'edx',
    '- - avx512_4vnniw avx512_4fmaps fsrm uintr - - avx512_vp2intersect - md_clear - - tsx_force_abort serialize - tsxldtrk - pconfig arch_lbr ibt - amx_bf16 avx512_fp16 amx_tile amx_int8 spec_ctrl intel_stibp flush_l1d arch_capabilities core_capabilities ssbd',
  ],
  [7, 1, 'eax', '- - - - avx_vnni avx512_bf16 - - - - fzrm fsrs fsrc - - - - - - - - amx_fp16 - avx_ifma'],
  [13, 1, 'eax', 'xsaveopt xsavec xgetbv1 xsaves xfd'],
  [
    0x8000_0001,
    0,
    'edx',
    '- - - - - - - - - - - syscall - - - - - - - mp nx - mmxext - - fxsr_opt pdpe1gb rdtscp - lm 3dnowext 3dnow',
  ],
  [
    0x8000_0001,
    0,
    'ecx',
    'lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw ibs xop skinit wdt - lwp fma4 tce - nodeid_msr - tbm topoext perfctr_core perfctr_nb - bpext ptsc perfctr_llc mwaitx',
  ],
  [0x8000_0008, 0, 'ebx', 'clzero irperf xsaveerptr - rdpru - - - - wbnoinvd'],
]

/** From what CPUID says to a vCPU. */
export function cpuNeedsOf(leaves: readonly CpuidLeaf[]): CpuNeeds {
  const find = (leaf: number, subleaf: number): CpuidLeaf | undefined =>
    leaves.find(each => each.leaf === leaf && each.subleaf === subleaf)
  const features: string[] = []
  for (const [leaf, subleaf, register, names] of WORDS) {
    const value = find(leaf, subleaf)?.[register] ?? 0
    names.split(' ').forEach((name, bit) => {
      if (name !== '-' && ((value >>> bit) & 1) === 1) features.push(name)
    })
  }
  const first = find(0, 0)
  const vendor = Buffer.alloc(12)
  if (first) {
    vendor.writeInt32LE(first.ebx | 0, 0)
    vendor.writeInt32LE(first.edx | 0, 4)
    vendor.writeInt32LE(first.ecx | 0, 8)
  }
  return describeCpu(vendor.toString('latin1').replace(/\0+$/, ''), features)
}

/** From names, where there is no CPUID to read. */
export function describeCpu(vendor: string, features: readonly string[]): CpuNeeds {
  const sorted = [...new Set(features)].sort()
  const digest = createHash('sha256')
    .update(JSON.stringify([vendor, sorted]))
    .digest('hex')
  return { vendor, features: sorted, digest: digest.slice(0, 32) }
}

/** Throws unless `host` has all that `needs` lists; the message names what is missing. */
export function checkCpu(needs: CpuNeeds, host: CpuNeeds, what: string): void {
  if (needs.digest === host.digest) return
  const have = new Set(host.features)
  const missing = needs.features.filter(feature => !have.has(feature))
  if (missing.length > 0) {
    throw new SnapshotError(
      'CPU_FEATURE',
      `${what} needs a CPU with ${missing.join(', ')}, which this host does not offer: restore it on a host that does, or start the box from its disk only`,
    )
  }
  if (needs.vendor !== host.vendor) {
    throw new SnapshotError(
      'CPU_FEATURE',
      `${what} was made on a CPU of ${needs.vendor}, and this host's is of ${host.vendor}: restore it on a host of the same make, or start the box from its disk only`,
    )
  }
}
