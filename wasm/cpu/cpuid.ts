/** CPUID: exactly what is implemented. */
import { cpu } from './cpu'
import { TSC_KHZ } from './time'
import { S_APIC_BASE, S_CPUS, S_CR4, S_INDEX, S_RAX, S_RBX, S_RCX, S_RDX } from './state'

// Leaf 1 ECX
const SSE3: u32 = 1 << 0
const PCLMULQDQ: u32 = 1 << 1
const SSSE3: u32 = 1 << 9
const CX16: u32 = 1 << 13
const SSE41: u32 = 1 << 19
const SSE42: u32 = 1 << 20
const X2APIC: u32 = 1 << 21
const MOVBE: u32 = 1 << 22
const POPCNT: u32 = 1 << 23
const TSC_DEADLINE: u32 = 1 << 24
const AES: u32 = 1 << 25
const RDRAND: u32 = 1 << 30
const HYPERVISOR: u32 = 0x8000_0000

/** Vector extensions beyond SSE2 that sse.ts implements. */
export const VECTOR_FEATURES: u32 = SSE3 | SSSE3 | SSE41 | SSE42 | PCLMULQDQ | AES

function put(a: u32, b: u32, c: u32, d: u32): void {
  store<u64>(cpu, a, S_RAX)
  store<u64>(cpu, b, S_RBX)
  store<u64>(cpu, c, S_RCX)
  store<u64>(cpu, d, S_RDX)
}

export function cpuid(): void {
  const leaf = load<u32>(cpu, S_RAX)
  const sub = load<u32>(cpu, S_RCX)
  const index = load<u32>(cpu, S_INDEX)
  const cpus = load<u32>(cpu, S_CPUS)
  switch (leaf) {
    case 0:
      put(0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69) // GenuineIntel
      return
    case 1: {
      let ecx = VECTOR_FEATURES | CX16 | X2APIC | MOVBE | POPCNT | TSC_DEADLINE | RDRAND | HYPERVISOR
      // XSAVE is offered (bit 26); OSXSAVE (bit 27) mirrors CR4.
      ecx |= 1 << 26
      if (load<u64>(cpu, S_CR4) & (1 << 18)) ecx |= 1 << 27
      // FPU VME- DE PSE TSC MSR PAE MCE CX8 APIC SEP MTRR PGE MCA CMOV PAT PSE36 CLFSH MMX FXSR SSE SSE2 HTT
      let edx: u32 = 0x0f8b_fbfd
      edx &= ~((1 << 7) | (1 << 14)) // no machine-check architecture
      edx &= ~(<u32>1 << 27) // no self-snoop
      if (!(load<u64>(cpu, S_APIC_BASE) & 0x800)) edx &= ~(1 << 9)
      if (cpus > 1) edx |= 1 << 28
      // Family 6, model 0x8f: one without the speculation bugs that kernels work around by model.
      put(0x000806f8, (index << 24) | (cpus << 16) | (8 << 8), ecx, edx)
      return
    }
    case 2:
      put(0x00fe_ff01, 0, 0, 0)
      return
    case 4:
      cacheLeaf(sub)
      return
    case 6:
      put(4, 0, 0, 0) // ARAT: the timer does not stop in idle
      return
    case 7:
      // EBX: FSGSBASE(0) TSC_ADJUST(1) SMEP(7) ERMS(9) SHA(29); EDX: SPEC_CTRL(26) ARCH_CAPABILITIES(29).
      // With TSC_ADJUST a kernel trusts the time-stamp counter and does not measure it against a late tick.
      if (sub == 0) put(0, (1 << 0) | (1 << 1) | (1 << 7) | (1 << 9) | (1 << 29), 0, (1 << 26) | (1 << 29))
      else put(0, 0, 0, 0)
      return
    case 0xb:
      if (sub == 0) put(0, 1, 0x100, index)
      else if (sub == 1) put(levelBits(cpus), cpus, 0x201, index)
      else put(0, 0, sub, index)
      return
    case 0xd:
      if (sub == 0) put(3, 576, 576, 0)
      else put(0, 0, 0, 0)
      return
    case 0x15:
      // Crystal of 100 MHz (the APIC timer's clock), TSC 10 times that.
      put(1, 10, 100_000_000, 0)
      return
    case 0x16:
      put(TSC_KHZ / 1000, TSC_KHZ / 1000, 100, 0)
      return
    case 0x4000_0000:
      put(0x4000_0010, 0x7274_6956, 0x2065_6e69, 0x2020_2020) // "Vitrine     "
      return
    case 0x4000_0010:
      put(TSC_KHZ, 100_000, 0, 0)
      return
    case 0x8000_0000:
      put(0x8000_0008, 0, 0, 0)
      return
    case 0x8000_0001:
      // LAHF; SYSCALL NX RDTSCP LM
      put(0, 0, 1, (1 << 11) | (1 << 20) | (1 << 27) | (1 << 29))
      return
    case 0x8000_0002:
      put(0x7274_6956, 0x2065_6e69, 0x7466_6f73, 0x6572_6177) // "Vitrine software"
      return
    case 0x8000_0003:
      put(0x5550_4320, 0, 0, 0) // " CPU"
      return
    case 0x8000_0004:
      put(0, 0, 0, 0)
      return
    case 0x8000_0006:
      put(0, 0, 0x0100_6040, 0)
      return
    case 0x8000_0007:
      put(0, 0, 0, 1 << 8) // invariant TSC
      return
    case 0x8000_0008:
      put(0x3028, 0, 0, 0) // 48-bit linear, 40-bit physical
      return
    default:
      put(0, 0, 0, 0)
  }
}

function levelBits(cpus: u32): u32 {
  let bits: u32 = 0
  while (<u32>1 << bits < cpus) bits++
  return bits
}

/** 32 KiB of L1 each way, 256 KiB of L2: enough to keep kernels from guessing. */
function cacheLeaf(sub: u32): void {
  if (sub == 0) put(0x0000_0121, 0x01c0_003f, 63, 0)
  else if (sub == 1) put(0x0000_0122, 0x01c0_003f, 63, 0)
  else if (sub == 2) put(0x0000_0143, 0x01c0_003f, 1023, 0)
  else put(0, 0, 0, 0)
}
