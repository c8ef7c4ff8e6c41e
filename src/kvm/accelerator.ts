/** KVM as an accelerator. */
import type { Accelerator } from '../accel/contract.ts'
import { probeKvm } from './probe.ts'
import { KvmVirtualMachine } from './vm.ts'

export const kvmAccelerator: Accelerator = {
  name: 'kvm',
  probe: async () => probeKvm(),
  createVm: async options => KvmVirtualMachine.create(options),
}
