/** The accelerator with no hardware behind it: an x86-64 CPU in WebAssembly. */
import { existsSync } from 'node:fs'
import type { Accelerator, AcceleratorReport, VirtualMachine, VmOptions } from '../accel/contract.ts'
import { assetPath } from '../host/assets.ts'
import { SoftVm } from './vm.ts'

export const softAccelerator: Accelerator = {
  name: 'soft',

  async probe(): Promise<AcceleratorReport> {
    const built = existsSync(assetPath('wasm/cpu.wasm'))
    return {
      name: 'soft',
      usable: built,
      runsMicroGuests: built,
      summary: built ? 'an x86-64 CPU in WebAssembly, on any machine' : 'the CPU module is not built',
      findings: [
        {
          what: 'the CPU module',
          ok: built,
          detail: built ? 'dist/wasm/cpu.wasm is there' : 'dist/wasm/cpu.wasm is missing',
          ...(built ? {} : { remedy: 'run npm run build' }),
        },
      ],
    }
  },

  createVm: async (options: VmOptions): Promise<VirtualMachine> => new SoftVm(options),
}
