/** Interrupt lines of the software CPU: a bit in shared memory, and a wake-up of the vCPU that routes them. */
import { ATTN_INTERRUPT, C_LINES } from '../../wasm/cpu/state.ts'
import { attentionIndex, CHIPS_BASE, INBOX_LINES } from './layout.ts'

const LINES = (CHIPS_BASE + C_LINES) >> 2
/** vCPU 0 owns the IOAPIC's inputs. */
const ROUTER = attentionIndex(0)

/** A function that raises one edge on `gsi`, from any thread; with `held`, for a machine in lockstep, between two slices. */
export function openSoftInterrupt(wasm: WebAssembly.Memory, gsi: number, held = false): () => void {
  const words = new Int32Array(wasm.buffer)
  const bit = 1 << gsi
  if (held) {
    return () => {
      Atomics.or(words, INBOX_LINES, bit)
      Atomics.notify(words, INBOX_LINES)
    }
  }
  return () => {
    Atomics.or(words, LINES, bit)
    Atomics.or(words, ROUTER, ATTN_INTERRUPT)
    Atomics.notify(words, ROUTER)
  }
}
