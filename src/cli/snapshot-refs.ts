/** How snapshots are named at the command line: `BOX@NAME`, `BOX@ID`, an id, or the name of an imported one. */
import { Home } from '../box/home.ts'
import { find } from '../box/store.ts'
import type { SnapshotManifest } from '../snapshot/manifest.ts'
import { SnapshotStore } from '../snapshot/store.ts'

export interface SnapshotContext {
  readonly home: Home
  readonly store: SnapshotStore
}

export function openSnapshots(): SnapshotContext {
  const home = new Home()
  return { home, store: new SnapshotStore(home.path) }
}

export function findSnapshot({ home, store }: SnapshotContext, ref: string): SnapshotManifest {
  const at = ref.lastIndexOf('@')
  return at < 0 ? store.findAny(ref) : store.find(find(home, ref.slice(0, at)).id, ref.slice(at + 1))
}

export const REF_HELP = 'A SNAPSHOT is BOX@NAME, its id, or the name of one that was imported.'
