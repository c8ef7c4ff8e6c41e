/** Saving and restoring a device with its transport: the driver's registers, the queues' positions, the device's own part. */
import type { SavedValue } from '../device.ts'
import { GuestFault, VirtioError } from '../errors.ts'
import type { QueuePosition } from '../queue/virtqueue.ts'
import { integerOf, listOf, recordOf } from '../saved.ts'
import * as page from './page.ts'
import * as reg from './registers.ts'
import type { VirtioTransport } from './transport.ts'

const VERSION = 1
const MAX_U32 = 0xffff_ffff
const SAVED_FACE = [page.F_STATUS, page.F_INTERRUPT, page.F_GENERATION] as const
const SAVED_WORDS = [
  page.W_ACCEPTED,
  page.W_ACCEPTED + 1,
  page.W_OFFERED_SEL,
  page.W_ACCEPTED_SEL,
  page.W_QUEUE_SEL,
] as const
const QUEUE_FIELDS = page.Q_DEVICE_HIGH - page.Q_NUM + 1

/** Only between two turns of the device's loop, with every vCPU stopped. */
export function saveTransport(transport: VirtioTransport): SavedValue {
  const { words, face } = transport.page
  return {
    version: VERSION,
    type: transport.device.type,
    active: transport.active,
    words: [...SAVED_FACE.map(word => face[word]! >>> 0), ...SAVED_WORDS.map(word => words[word]! >>> 0)],
    config: [...transport.page.config.subarray(0, words[page.W_CONFIG_SIZE]!)],
    queues: transport.queues.map(queue => {
      const at = page.queueWord(queue.index) + page.Q_NUM
      const { nextAvail, nextUsed } = queue.position
      return {
        registers: Array.from(words.subarray(at, at + QUEUE_FIELDS), word => word >>> 0),
        nextAvail: queue.ready ? nextAvail : 0,
        nextUsed: queue.ready ? nextUsed : 0,
      }
    }),
    device: transport.device.save(),
  }
}

/**
 * Into a fresh transport of the same kind of device. Guest memory must be restored before. Throws VirtioError when the
 * state is not one that `saveTransport` can have made for this device.
 */
export function restoreTransport(transport: VirtioTransport, saved: SavedValue): void {
  const { words, face, config } = transport.page
  const state = recordOf(saved, 'a virtio device')
  integerOf(state.version, 'its version', VERSION, VERSION)
  integerOf(state.type, 'its device type', transport.device.type, transport.device.type)
  const registers = listOf(state.words, 'its registers', SAVED_FACE.length + SAVED_WORDS.length).map(value =>
    integerOf(value, 'a register', 0, MAX_U32),
  )
  const values = registers.slice(SAVED_FACE.length)
  const configBytes = listOf(state.config, 'its configuration', words[page.W_CONFIG_SIZE]!).map(value =>
    integerOf(value, 'a configuration byte', 0, 255),
  )
  const queues = listOf(state.queues, 'its queues', transport.queues.length).map(value => {
    const queue = recordOf(value, 'a queue')
    return {
      registers: listOf(queue.registers, "a queue's registers", QUEUE_FIELDS).map(word =>
        integerOf(word, "a queue's register", 0, MAX_U32),
      ),
      nextAvail: integerOf(queue.nextAvail, "a queue's position", 0, 0xffff),
      nextUsed: integerOf(queue.nextUsed, "a queue's position", 0, 0xffff),
    }
  })
  for (let half = 0; half < 2; half++) {
    const accepted = values[SAVED_WORDS.indexOf(page.W_ACCEPTED) + half]!
    if ((accepted & ~words[page.W_OFFERED + half]!) === 0) continue
    throw new VirtioError(
      'BAD_STATE',
      `the saved driver uses features 0x${accepted.toString(16)} (from bit ${32 * half}) that this device does not offer: restore it with the same options`,
    )
  }
  SAVED_FACE.forEach((word, i) => {
    face[word] = registers[i]!
  })
  SAVED_WORDS.forEach((word, i) => {
    words[word] = values[i]!
  })
  // A generation never stands in the middle of a change.
  face[page.F_GENERATION]! &= ~1
  config.set(configBytes)
  queues.forEach((queue, i) => {
    words.set(queue.registers, page.queueWord(i) + page.Q_NUM)
  })
  transport.page.showSelected()
  const runs = state.active === true && (face[page.F_STATUS]! & reg.STATUS_DRIVER_OK) !== 0
  if (runs) startRestored(transport, queues)
  transport.device.restore(state.device ?? null)
  transport.renewInterrupt()
  transport.ringAll()
}

function startRestored(transport: VirtioTransport, positions: readonly QueuePosition[]): void {
  try {
    transport.start(positions)
  } catch (cause) {
    if (!(cause instanceof GuestFault)) throw cause
    throw new VirtioError('BAD_STATE', `the saved queues cannot be used: ${cause.message}. Take the snapshot again.`, {
      cause,
    })
  }
}
