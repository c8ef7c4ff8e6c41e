/** A vCPU as its machine holds it, wherever it runs: in a worker (`vcpu-thread.ts`), or on the machine's own thread (`local-vcpu.ts`). */
import type { VcpuExit } from '../accel/contract.ts'
import type { VcpuService } from './vcpu-service.ts'

type Answered<Method> = Method extends (...args: infer Args) => infer Result
  ? (...args: Args) => Promise<Awaited<Result>>
  : never

type Served = Omit<VcpuService, 'vcpu' | 'entered' | 'close'>

/** What can be asked of it. Only one `run` at a time, and nothing else meanwhile. */
export type VcpuCalls = { readonly [Name in keyof Served]: Answered<Served[Name]> } & {
  /** Resolves when the guest is left. */
  run(): Promise<VcpuExit>
}

export interface VcpuHandle {
  /** Hears that console output is there. */
  onConsole: () => void
  /** The result of a call, or the reason why there can be none any more. */
  call<T>(use: (api: VcpuCalls) => Promise<T>): Promise<T>
  /** Closes the vCPU, which must be out of the guest, and ends its thread if it has one. */
  close(): Promise<void>
}
