/** What a box is, as it is kept on disk. Versioned and checked when read: another program may have written it. */
import { readFileSync, renameSync, writeFileSync } from 'node:fs'
import type { Bandwidth } from '../net/description.ts'
import { BoxError } from './errors.ts'
import type { BoxFolder } from './home.ts'

const RECORD_VERSION = 1

/** A host port, or several in a row, that lead into the guest. */
export interface PortMapping {
  /** 0: choose a free one. */
  readonly host: number
  readonly guest: number
  /** How many ports in a row; 1 unless told. */
  readonly range?: number
  readonly protocol?: 'tcp' | 'udp'
  readonly bind?: string
}

/** What a box may reach: everything, nothing, or what rules say (names with `*.`, addresses, networks). */
export type NetworkPolicy = 'full' | 'none' | { readonly allow?: readonly string[]; readonly deny?: readonly string[] }

/** The shape and the settings of a box: fixed when it is created. */
export interface BoxConfig {
  readonly image: string
  readonly cpus: number
  readonly memoryMib: number
  /** Size of the disk that the guest sees; it takes space on the host only as it is written. */
  readonly diskGib: number
  readonly env: Readonly<Record<string, string>>
  readonly workdir: string
  readonly user: string
  readonly accel: 'auto' | 'kvm' | 'hvf' | 'soft'
  readonly network: NetworkPolicy
  readonly ports: readonly PortMapping[]
  /** Named networks that the box is in; absent in records of earlier versions. */
  readonly networks?: readonly string[]
  readonly bandwidth?: Bandwidth
  /** Where the box's packets are recorded, from each start on. */
  readonly pcap?: string
  /** Run at every start, its output kept in the log; the box stops when it ends. */
  readonly command: readonly string[] | null
  /** Lives on when its creator ends. */
  readonly detach: boolean
  /** Removed when it stops. */
  readonly autoRemove: boolean
  /** Stopped this long after its start; 0: never. */
  readonly timeoutMs: number
  /** Stopped after this long with nobody using it; 0: never. */
  readonly idleMs: number
  /** What happens then: stopped unless told, or paused, with its memory on disk, until it is used. */
  readonly onIdle?: 'stop' | 'pause'
  /** False: it boots, even where a template could be used, and leaves none. */
  readonly template?: boolean
}

export interface BoxRecord {
  readonly version: number
  readonly id: string
  readonly name: string
  readonly created: string
  /** The content of the image that the disk is based on. */
  readonly imageId: string
  /** The ext4 file under the disk's overlay. */
  readonly baseDisk: string
  /** What the image runs, and with which arguments when it is given none. */
  readonly imageEntrypoint: readonly string[]
  readonly imageCmd: readonly string[]
  /** The snapshot that its disk goes on from: rolled back to, or restored from. */
  readonly parent?: string | null
  readonly config: BoxConfig
}

export function writeRecord(folder: BoxFolder, record: Omit<BoxRecord, 'version'>): void {
  const temporary = `${folder.record}.${process.pid}`
  writeFileSync(temporary, `${JSON.stringify({ version: RECORD_VERSION, ...record }, null, 2)}\n`, {
    flush: true,
  } as object)
  renameSync(temporary, folder.record)
}

export function readRecord(folder: BoxFolder): BoxRecord {
  let record: BoxRecord
  try {
    record = JSON.parse(readFileSync(folder.record, 'utf8')) as BoxRecord
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT')
      throw new BoxError('NOT_FOUND', `there is no box ${folder.id}`)
    throw new BoxError(
      'INVALID',
      `${folder.record} is damaged: remove the box with 'vitrine rm --force ${folder.id}'`,
      { cause: error },
    )
  }
  if (record.version !== RECORD_VERSION || record.id !== folder.id || typeof record.config !== 'object') {
    throw new BoxError(
      'INVALID',
      `${folder.record} was written by another version of Vitrine: use that version, or remove the box`,
    )
  }
  return record
}
