/** Interrupt lines of the software CPU: a bit in shared memory, and a wake-up of the vCPU that routes them. */
import { ATTN_INTERRUPT, C_LINES } from '../../wasm/cpu/state.ts'
import { attentionIndex, CHIPS_BASE } from './layout.ts'

const LINES = (CHIPS_BASE + C_LINES) >> 2
/** vCPU 0 owns the IOAPIC's inputs. */
const ROUTER = attentionIndex(0)

/** A function that raises one edge on `gsi`, from any thread. */
export function openSoftInterrupt(wasm: WebAssembly.Memory, gsi: number): () => void {
  const words = new Int32Array(wasm.buffer)
  const bit = 1 << gsi
  return () => {
    Atomics.or(words, LINES, bit)
    Atomics.or(words, ROUTER, ATTN_INTERRUPT)
    Atomics.notify(words, ROUTER)
  }
}
