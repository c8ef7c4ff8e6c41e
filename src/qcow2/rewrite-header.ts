/**
 * Changing the name of the backing file, such that a crash leaves the old header or the new one. The first sector is
 * written last and alone; a name that does not fit it goes to a place that the old header does not use.
 */
import { setU64, viewOver } from './bytes.ts'
import { encodeHeader, type Header } from './header.ts'
import { EXTENSION_FEATURE_NAMES, HEADER, SECTOR } from './layout.ts'
import type { Metadata } from './metadata.ts'

export function rewriteHeader(metadata: Metadata, change: Pick<Header, 'backingFile' | 'backingFormat'>): void {
  const { storage, header, path, geometry } = metadata
  const { clusterSize } = geometry
  const old = new Uint8Array(clusterSize)
  storage.read(old, 0)
  const next: Header = {
    ...header,
    backingFile: change.backingFile,
    backingFormat: change.backingFormat,
    // Names of features only serve messages, and without them everything else fits the first sector.
    extensions: header.extensions.filter(extension => extension.type !== EXTENSION_FEATURE_NAMES),
  }
  const bytes = encodeHeader(next, path)
  const view = viewOver(bytes)
  const nameOffset = viewOver(bytes).getUint32(HEADER.backingFileOffset + 4)
  const nameBytes = view.getUint32(HEADER.backingFileSize)
  if (nameOffset + nameBytes > SECTOR && clusterSize > SECTOR) {
    const oldName = viewOver(old).getUint32(HEADER.backingFileOffset + 4)
    const oldEnd = oldName + viewOver(old).getUint32(HEADER.backingFileSize)
    const place = oldName < SECTOR + nameBytes && oldEnd > SECTOR ? Math.ceil(oldEnd / SECTOR) * SECTOR : SECTOR
    if (place + nameBytes <= clusterSize) {
      const name = bytes.slice(nameOffset, nameOffset + nameBytes)
      bytes.fill(0, nameOffset)
      bytes.set(name, place)
      setU64(view, HEADER.backingFileOffset, place)
      storage.write(name, place)
      storage.flush()
    }
  }
  storage.write(bytes.subarray(0, SECTOR), 0)
  storage.flush()
  // What is left of an old name is cleared only when nothing refers to it any more.
  if (clusterSize > SECTOR) storage.write(bytes.subarray(SECTOR), SECTOR)
  storage.flush()
  Object.assign(header, next)
}
