/** What a machine goes on from: the state in a snapshot, and its memory, mapped copy-on-write, so that nothing is read before it is needed. */
import type { AcceleratorName } from '../../accel/contract.ts'
import { readAt } from '../../host/file.ts'
import { mapPrivateOver } from '../../host/mapping.ts'
import { decodeMachineState, type MachineState } from '../../machine/machine-state.ts'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { MIB, RAM_OFFSET } from '../../memory/layout.ts'
import { checkCpu } from '../../snapshot/cpu-needs.ts'
import { SnapshotError } from '../../snapshot/errors.ts'
import type { SnapshotManifest } from '../../snapshot/manifest.ts'
import type { MemoryImage } from '../../snapshot/memory-image.ts'
import type { SnapshotStore } from '../../snapshot/store.ts'
import type { SnapshotRef } from '../pending.ts'
import { cpuOf } from './cpu.ts'

export interface SavedMachine {
  readonly manifest: SnapshotManifest
  readonly image: MemoryImage
  readonly state: MachineState
}

/** One whose memory is mapped. */
export interface MappedMachine extends SavedMachine {
  readonly memory: GuestMemory
}

/** Opens a snapshot to go on from, if that is possible on this host. */
async function openSaved(
  store: SnapshotStore,
  { owner, id }: SnapshotRef,
  accel: AcceleratorName,
): Promise<SavedMachine> {
  const manifest = store.find(owner, id)
  const what = `the snapshot '${manifest.name ?? manifest.id}'`
  if (manifest.machine && manifest.machine.accelerator !== accel) {
    throw new SnapshotError(
      'ACCELERATOR',
      `${what} was taken on the accelerator '${manifest.machine.accelerator}', and this is '${accel}': use the same, or go on from its disk only`,
    )
  }
  if (manifest.cpu) checkCpu(manifest.cpu, await cpuOf(accel), what)
  const state = await store.check(manifest)
  // One of a disk only says so here.
  const image = store.openMemory(manifest)
  return { manifest, image, state: decodeMachineState(state!) }
}

/** The same with its memory. */
export async function mapSaved(
  store: SnapshotStore,
  snapshot: SnapshotRef,
  accel: AcceleratorName,
): Promise<MappedMachine> {
  const saved = await openSaved(store, snapshot, accel)
  return { ...saved, memory: restoredMemory(saved.image) }
}

function restoredMemory(image: MemoryImage): GuestMemory {
  const memory = GuestMemory.create(image.size / MIB)
  for (const { kind, offset, length, fd, path } of image.plan()) {
    const at = RAM_OFFSET + offset
    if (kind === 'map') mapPrivateOver(memory.bytes, at, length, fd, offset)
    else if (readAt(fd, memory.bytes.subarray(at, at + length), offset) !== length) {
      throw new SnapshotError('TRUNCATED', `${path} was cut short: remove the snapshot, or import it again`)
    }
  }
  return memory
}
