/** The guest's console on this terminal: raw while the guest runs, and put back however it ends. */
import type { Machine } from '../machine/machine.ts'

/** Ctrl-]: the key that ends the guest, as telnet's. */
const QUIT_KEY = 0x1d

export interface AttachedTerminal {
  detach(): void
}

export function attachTerminal(machine: Machine, onQuit: () => void): AttachedTerminal {
  const { stdin, stdout } = process
  let attached = true
  const release = (): void => machine.console.release()
  const onOutput = (data: Uint8Array): void => {
    // A slow reader of our output slows the guest down, and nothing piles up here.
    if (!stdout.write(data)) machine.console.hold()
  }
  const onInput = (data: Buffer): void => {
    const quit = stdin.isTTY ? data.indexOf(QUIT_KEY) : -1
    const typed = quit < 0 ? data : data.subarray(0, quit)
    stdin.pause()
    void machine.console.write(typed).then(() => {
      if (attached) stdin.resume()
    })
    if (quit >= 0) onQuit()
  }
  const restore = (): void => {
    if (stdin.isTTY) stdin.setRawMode(false)
  }
  machine.on('console', onOutput)
  stdout.on('drain', release)
  stdin.on('data', onInput)
  if (stdin.isTTY) stdin.setRawMode(true)
  // Even when something goes badly wrong, the user's terminal is left usable.
  process.on('exit', restore)
  return {
    detach: () => {
      attached = false
      machine.off('console', onOutput)
      stdout.off('drain', release)
      stdin.off('data', onInput)
      stdin.pause()
      restore()
      process.off('exit', restore)
    },
  }
}
