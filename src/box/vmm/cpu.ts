/** What an accelerator's CPU offers here, for snapshots: a guest that has used a feature cannot do without it. */
import type { AcceleratorName } from '../../accel/contract.ts'
import { type CpuNeeds, cpuNeedsOf, describeCpu } from '../../snapshot/cpu-needs.ts'

/** The software CPU is the same everywhere; what its CPUID says is in wasm/cpu/cpuid.ts. */
const SOFT_CPU = describeCpu('Vitrine', ['x86-64', 'sse4_2', 'aes', 'sha_ni', 'smep', 'fsgsbase'])

export async function cpuOf(accelerator: AcceleratorName): Promise<CpuNeeds> {
  if (accelerator !== 'kvm') return SOFT_CPU
  const [{ KvmSystem }, { decodeCpuid }] = await Promise.all([
    import('../../kvm/system.ts'),
    import('../../kvm/cpuid.ts'),
  ])
  const system = KvmSystem.open()
  try {
    return cpuNeedsOf(decodeCpuid(system.supportedCpuid()))
  } finally {
    system.close()
  }
}
