/** A vCPU on its machine's own thread, where `MainLoop` gives it turns between those of devices and of Node. */
import type { Vcpu, VcpuExit } from '../accel/contract.ts'
import type { LoopWork, MainLoop } from '../host/main-loop.ts'
import type { Bus } from './bus.ts'
import type { VcpuCalls, VcpuHandle } from './vcpu-handle.ts'
import { VcpuService } from './vcpu-service.ts'

interface Run {
  readonly vcpu: Vcpu
  readonly bus: Bus
  end(exit: VcpuExit): void
}

export class LocalVcpu implements VcpuHandle, LoopWork {
  onConsole: () => void = () => {}
  readonly #loop: MainLoop
  readonly #calls: VcpuCalls
  readonly #service: VcpuService
  #run: Run | undefined
  #hasOutput = false

  constructor(loop: MainLoop) {
    this.#loop = loop
    this.#service = new VcpuService({
      // Not at once: a port is being written, and listeners may write to the console.
      ready: () => {
        this.#hasOutput = true
      },
      full: () => this.#passOutput(),
    })
    this.#calls = this.#asCalls()
  }

  /** The service's methods as promises; `run` is our own. */
  #asCalls(): VcpuCalls {
    const service = this.#service
    return {
      open: (ticket, description) => service.open(ticket, description),
      boot: async entry => service.boot(entry),
      run: () => this.#enter(),
      step: async count => service.step(count),
      save: async () => service.save(),
      restore: async state => service.restore(state),
      registers: async () => service.registers(),
      setRegisters: async registers => service.setRegisters(registers),
      setSystemRegisters: async system => service.setSystemRegisters(system),
      forgetTranslations: async () => service.forgetTranslations(),
      counters: async () => service.counters(),
    }
  }

  call<T>(use: (api: VcpuCalls) => Promise<T>): Promise<T> {
    return use(this.#calls)
  }

  #enter(): Promise<VcpuExit> {
    const { vcpu } = this.#service
    const bus = this.#service.entered()
    return new Promise(resolve => {
      this.#run = { vcpu, bus, end: resolve }
      this.#loop.work = this
    })
  }

  turn(): number {
    const { vcpu, bus, end } = this.#run!
    // Only vCPUs that can are put here.
    const next = vcpu.turn!(bus)
    if (this.#hasOutput) this.#passOutput()
    if (typeof next === 'number') return next
    this.#run = undefined
    this.#loop.work = undefined
    end(next)
    return 0
  }

  #passOutput(): void {
    this.#hasOutput = false
    this.onConsole()
  }

  async close(): Promise<void> {
    this.#loop.work = undefined
    this.#service.close()
  }
}
