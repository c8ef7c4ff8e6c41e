/** virtio-console's features and configuration space: VIRTIO 1.2, sections 5.3.3 and 5.3.4. One port, no multiport. */
export const F_SIZE = 0
export const CONSOLE_QUEUE_SIZE = 64
export const RX_QUEUE = 0
export const TX_QUEUE = 1

export interface ConsoleOptions {
  /** Non-blocking descriptors of the caller's: where the guest's input comes from, and where its output goes. */
  readonly inputFd: number
  readonly outputFd: number
  readonly columns?: number
  readonly rows?: number
  /**
   * When nobody takes the output. 'drop', the default: a console never stops its guest (Linux spins, with a lock held,
   * until a console write is done). 'wait': nothing is lost, and the guest may hang for as long as nobody reads.
   */
  readonly whenFull?: 'drop' | 'wait'
}

export function sizeBytes(columns: number, rows: number): Uint8Array {
  const bytes = new Uint8Array(4)
  const view = new DataView(bytes.buffer)
  view.setUint16(0, columns, true)
  view.setUint16(2, rows, true)
  return bytes
}

export function consoleConfig(columns: number, rows: number): Uint8Array {
  const config = new Uint8Array(12)
  config.set(sizeBytes(columns, rows))
  new DataView(config.buffer).setUint32(4, 1, true)
  return config
}
