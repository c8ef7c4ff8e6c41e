/**
 * What CPUID says to each vCPU: what KVM supports, made to describe this machine's CPUs instead of the host's. KVM's own
 * leaves (0x40000000 and on) stay, so that Linux finds kvm-clock and its other paravirtual help.
 */
import { ioctl } from './ioctl.ts'
import { KVM } from './ioctls.ts'
import { CPUID_ENTRY2, CPUID2 } from './structs.ts'

export interface CpuidEntry {
  leaf: number
  subleaf: number
  flags: number
  eax: number
  ebx: number
  ecx: number
  edx: number
}

export function decodeCpuid(bytes: Uint8Array): CpuidEntry[] {
  const entries: CpuidEntry[] = []
  for (let at = 0; at + CPUID_ENTRY2.size <= bytes.length; at += CPUID_ENTRY2.size) {
    const e = CPUID_ENTRY2.over(bytes.subarray(at, at + CPUID_ENTRY2.size))
    entries.push({
      leaf: e.get('function'),
      subleaf: e.get('index'),
      flags: e.get('flags'),
      eax: e.get('eax'),
      ebx: e.get('ebx'),
      ecx: e.get('ecx'),
      edx: e.get('edx'),
    })
  }
  return entries
}

export function encodeCpuid(entries: readonly CpuidEntry[]): Uint8Array {
  const bytes = new Uint8Array(entries.length * CPUID_ENTRY2.size)
  entries.forEach((entry, i) => {
    CPUID_ENTRY2.over(bytes.subarray(i * CPUID_ENTRY2.size))
      .set('function', entry.leaf)
      .set('index', entry.subleaf)
      .set('flags', entry.flags)
      .set('eax', entry.eax)
      .set('ebx', entry.ebx)
      .set('ecx', entry.ecx)
      .set('edx', entry.edx)
  })
  return bytes
}

/** `records` are `kvm_cpuid_entry2`, as `encodeCpuid` makes them. */
export function setCpuid(fd: number, records: Uint8Array): void {
  const list = CPUID2.create(records.length).set('nent', records.length / CPUID_ENTRY2.size)
  list.bytes.set(records, CPUID2.size)
  ioctl(fd, 'KVM_SET_CPUID2', list.bytes)
}

export function getCpuid(fd: number, capacity: number): Uint8Array {
  const list = CPUID2.create(capacity * CPUID_ENTRY2.size).set('nent', capacity)
  ioctl(fd, 'KVM_GET_CPUID2', list.bytes)
  // Some kernels leave the count as it was asked for: records that they did not write are all zero, and at the end.
  const records = list.bytes.subarray(CPUID2.size, CPUID2.size + list.get('nent') * CPUID_ENTRY2.size)
  let length = records.length
  while (length > 0 && records.subarray(length - CPUID_ENTRY2.size, length).every(byte => byte === 0)) {
    length -= CPUID_ENTRY2.size
  }
  return records.slice(0, length)
}

export interface CpuidMachine {
  readonly index: number
  readonly cpus: number
  /** Local APICs in the kernel, and with them the TSC-deadline timer. */
  readonly localApic: boolean
}

const INTEL_EBX = 0x756e6547 // "Genu"
const HYPERVISOR = 1 << 31
const TSC_DEADLINE = 1 << 24
const HTT = 1 << 28
const CMP_LEGACY = 1 << 1

/** Bits 25-14 of a cache leaf: how many logical CPUs share it, less one. Levels 1 and 2 are private, level 3 common. */
function shareCache(eax: number, cpus: number): number {
  const level = (eax >>> 5) & 7
  const sharing = level >= 3 ? cpus - 1 : 0
  return ((eax & ~(0xfff << 14)) | (sharing << 14)) >>> 0
}

/** How many bits of the APIC id number the CPUs of the package. */
const idBits = (cpus: number): number => Math.ceil(Math.log2(cpus))

/** The table for one vCPU, of single-threaded cores in one package, with its index as APIC id. */
export function normaliseCpuid(
  supported: readonly CpuidEntry[],
  { index, cpus, localApic }: CpuidMachine,
): CpuidEntry[] {
  const intel = supported.find(entry => entry.leaf === 0)?.ebx === INTEL_EBX
  const entries: CpuidEntry[] = []
  for (const entry of supported.map(original => ({ ...original }))) {
    switch (entry.leaf) {
      case 0x1:
        // EBX: initial APIC id, logical CPUs in the package, CLFLUSH line in units of 8 bytes.
        entry.ebx = ((index << 24) | (Math.min(cpus, 255) << 16) | (8 << 8) | (entry.ebx & 0xff)) >>> 0
        entry.ecx = (entry.ecx | HYPERVISOR) >>> 0
        entry.ecx = (localApic ? entry.ecx | TSC_DEADLINE : entry.ecx & ~TSC_DEADLINE) >>> 0
        entry.edx = (cpus > 1 ? entry.edx | HTT : entry.edx & ~HTT) >>> 0
        break
      case 0x4:
        if ((entry.eax & 31) !== 0) {
          entry.eax = shareCache(entry.eax, cpus)
          // Bits 31-26: cores in the package, less one.
          entry.eax = ((entry.eax & 0x03ff_ffff) | (Math.min(cpus - 1, 63) << 26)) >>> 0
        }
        break
      case 0x6:
        // ARAT: the local APIC's timer goes on in every power state, so no other timer need stand in for it.
        entry.eax |= 1 << 2
        break
      case 0xa:
        // No performance counters: their state does not travel with a snapshot.
        entry.eax = 0
        entry.ebx = 0
        entry.ecx = 0
        entry.edx = 0
        break
      // Topology, written anew below. 0x1F would override 0xB.
      case 0xb:
      case 0x1f:
        continue
      case 0x80000001:
        if (!intel) entry.ecx = (cpus > 1 ? entry.ecx | CMP_LEGACY : entry.ecx & ~CMP_LEGACY) >>> 0
        break
      case 0x80000008:
        // AMD, ECX: bits of the APIC id, and CPUs in the package less one.
        if (!intel) entry.ecx = ((entry.ecx & ~0xf0ff) | (idBits(cpus) << 12) | (cpus - 1)) >>> 0
        break
      case 0x8000001d:
        if ((entry.eax & 31) !== 0) entry.eax = shareCache(entry.eax, cpus)
        break
      case 0x8000001e:
        // Extended APIC id; core id with one thread; one node.
        entry.eax = index
        entry.ebx = index & 0xff
        entry.ecx = 0
        break
    }
    entries.push(entry)
  }
  const maximum = supported.find(entry => entry.leaf === 0)?.eax ?? 0
  if (maximum >= 0xb) entries.push(...topologyLeaves(index, cpus))
  return entries
}

/** Leaf 0xB (SDM volume 2, CPUID): a level of threads and one of cores; EDX is the x2APIC id on every subleaf. */
function topologyLeaves(index: number, cpus: number): CpuidEntry[] {
  const flags = KVM.KVM_CPUID_FLAG_SIGNIFCANT_INDEX
  return [
    { leaf: 0xb, subleaf: 0, flags, eax: 0, ebx: 1, ecx: (1 << 8) | 0, edx: index },
    { leaf: 0xb, subleaf: 1, flags, eax: idBits(cpus), ebx: cpus, ecx: (2 << 8) | 1, edx: index },
    { leaf: 0xb, subleaf: 2, flags, eax: 0, ebx: 0, ecx: 2, edx: index },
  ]
}
