/** What the main thread and a device worker say to each other. Commands are answered in order, by number. */
import type { MessagePort } from 'node:worker_threads'
import type { SavedValue } from '../device.ts'
import type { VirtioSlot } from '../slot.ts'
import type { DeviceDescription } from './descriptions.ts'

export type Command =
  | {
      readonly do: 'attach'
      readonly device: number
      readonly slot: VirtioSlot
      readonly description: DeviceDescription
    }
  /** Between these two the worker serves nothing but commands. */
  | { readonly do: 'pause'; readonly device: number }
  | { readonly do: 'resume'; readonly device: number }
  | { readonly do: 'save'; readonly device: number }
  | { readonly do: 'restore'; readonly device: number; readonly state: SavedValue }
  | { readonly do: 'reset'; readonly device: number }
  /** Something of the device's own: a new window size, a new balloon target. */
  | { readonly do: 'control'; readonly device: number; readonly request: SavedValue }
  | { readonly do: 'close'; readonly device: number }
  | { readonly do: 'end' }

export interface CommandMessage {
  readonly number: number
  readonly command: Command
}

export type Answer =
  | { readonly number: number; readonly result: SavedValue }
  | {
      readonly number: number
      readonly error: { readonly name: string; readonly code: string; readonly message: string }
    }
  /** Not an answer: a failure that the guest saw as an I/O error at most. `times`: since the last such message. */
  | { readonly report: string; readonly device: number; readonly times: number }

/** What a device worker is started with. */
export interface WorkerStart {
  readonly port: MessagePort
  /** An eventfd, signalled after every command. */
  readonly wakeFd: number
  /** One word: not 0 when the process is about to exit. */
  readonly exiting: Int32Array
}
