/** Brings a box's disk to the contents of a plain image, writing only what differs, as a guest's own writes would. */
import { openDisk } from '../../qcow2/open.ts'
import { readDisk, writeDisk } from '../../qcow2/testing/disk-io.ts'

const STEP = 4096

export function copyChanges(plain: string, disk: string, folders: readonly string[], length: number): void {
  const source = openDisk(plain, { format: 'raw', readOnly: true, lock: false })
  const target = openDisk(disk, { format: 'qcow2', backingFolders: folders })
  try {
    for (let at = 0; at < length; at += STEP) {
      const wanted = readDisk(source, at, STEP)
      if (Buffer.compare(wanted, readDisk(target, at, STEP)) !== 0) writeDisk(target, at, wanted)
    }
  } finally {
    source.close()
    target.close()
  }
}
