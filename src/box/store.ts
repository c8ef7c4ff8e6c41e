/** The boxes of a home: finding, listing, creating and removing their folders, safely between processes. */
import { randomBytes } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ProcessLock } from '../host/process-lock.ts'
import { removeFile, removeFolder } from '../host/remove.ts'
import { BoxError, rethrowFull } from './errors.ts'
import type { BoxFolder, Home } from './home.ts'
import { isHeld, withLockNow } from './locks.ts'
import { leaveNetworks } from './networks.ts'
import { type BoxRecord, readRecord } from './record.ts'

const NAME = /^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$/
const ID = /^[0-9a-f]{12}$/

export function checkName(name: string): void {
  if (NAME.test(name)) return
  throw new BoxError(
    'INVALID',
    `'${name}' cannot be a box's name: use 1 to 63 letters, digits, '_', '.' or '-', starting with a letter or a digit`,
  )
}

/** Held by whoever makes a box, until its record is there. */
const CREATING_LOCK = 'creating.lock'
/** Of a folder that is being made, by whoever has the lock of names. */
const NEW = '.new-'

export interface Reservation {
  readonly folder: BoxFolder
  readonly name: string
  /** The record is written, or the folder discarded: it need not be protected any more. */
  done(): void
}

/**
 * Makes an empty folder for a new box and takes its name; undone by `discard`. A process that is killed before it has written the
 * record leaves a folder that nobody holds, which the next one takes away.
 */
export function reserve(home: Home, wanted: string | undefined): Reservation {
  home.prepare()
  if (wanted !== undefined) checkName(wanted)
  removeAbandoned(home)
  removeStaleNames(home)
  try {
    return makeFolder(home, wanted)
  } catch (error) {
    rethrowFull(error, 'no box can be made')
  }
}

function makeFolder(home: Home, wanted: string | undefined): Reservation {
  const id = randomBytes(6).toString('hex')
  const name = wanted ?? id
  const folder = home.box(id)
  const hidden = join(home.boxes, `${NEW}${id}`)
  return withLockNow(namesLock(home), () => {
    // Nobody else makes one now: what is half made was left by one who was killed.
    for (const entry of readdirSync(home.boxes)) if (entry.startsWith(NEW)) removeFolder(join(home.boxes, entry))
    mkdirSync(hidden, { mode: 0o700 })
    const lock = ProcessLock.tryAcquire(join(hidden, CREATING_LOCK))
    renameSync(hidden, folder.path)
    const done = (): void => {
      lock?.release()
      removeFile(join(folder.path, CREATING_LOCK))
    }
    try {
      takeName(home, name, id)
    } catch (error) {
      done()
      // Another process may clear it away as abandoned at this moment.
      removeFolder(folder.path)
      throw error
    }
    return { folder, name, done }
  })
}

const namesLock = (home: Home): string => `${home.names}.lock`

/** Folders of boxes that were never finished, or not removed to the end, by processes that are gone. */
function removeAbandoned(home: Home): void {
  for (const entry of readdirSync(home.boxes)) {
    const path = join(home.boxes, entry)
    if (!ID.test(entry) || existsSync(home.box(entry).record)) continue
    try {
      if (isHeld(join(path, CREATING_LOCK)) || isHeld(home.box(entry).vmmLock)) continue
      // Its record may have been written between the two looks.
      if (!existsSync(home.box(entry).record)) removeFolder(path)
    } catch {
      // Another process takes it away at this moment.
    }
  }
}

/** Names whose box is gone: the process that removed it, or cleared it away, did not get to the name. */
function removeStaleNames(home: Home): void {
  // A box has its folder before its name, and one name.
  if (readdirSync(home.names).length <= ids(home).length) return
  withLockNow(namesLock(home), () => {
    for (const name of readdirSync(home.names)) {
      const holder = readName(home, name)
      if (holder === undefined || !isThere(home.box(holder))) removeFile(join(home.names, name))
    }
  })
}

/** Creates the name's file exclusively. One left behind by a box that is gone is taken over, which takes the lock of names. */
function takeName(home: Home, name: string, id: string): void {
  const path = join(home.names, name)
  for (;;) {
    try {
      writeFileSync(path, id, { flag: 'wx' })
      return
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'ENOSPC') removeFile(path) // made, but empty
      if (code !== 'EEXIST') throw error
    }
    const holder = readName(home, name)
    if (holder !== undefined && isThere(home.box(holder))) {
      throw new BoxError(
        'NAME_IN_USE',
        `a box named '${name}' exists: choose another name, or remove it with 'vitrine rm ${name}'`,
      )
    }
    removeFile(path)
  }
}

/** The id of the box that has it; undefined: none, or whoever took it was killed before it had written its id. */
function readName(home: Home, name: string): string | undefined {
  try {
    const holder = readFileSync(join(home.names, name), 'utf8')
    return ID.test(holder) ? holder : undefined
  } catch {
    return undefined
  }
}

function isThere(folder: BoxFolder): boolean {
  try {
    readdirSync(folder.path)
    return true
  } catch {
    return false
  }
}

/** The folder of a box by name, id, or the unambiguous beginning of an id. */
export function find(home: Home, wanted: string): BoxFolder {
  const named = NAME.test(wanted) ? readName(home, wanted) : undefined
  if (named !== undefined && isThere(home.box(named))) return home.box(named)
  const matches = /^[0-9a-f]{2,12}$/.test(wanted) ? ids(home).filter(id => id.startsWith(wanted)) : []
  if (matches.length === 1) return home.box(matches[0]!)
  if (matches.length > 1) {
    throw new BoxError('NOT_FOUND', `'${wanted}' could be any of ${matches.join(', ')}: give more of the id`)
  }
  throw new BoxError('NOT_FOUND', `there is no box '${wanted}': 'vitrine ps --all' lists those there are`)
}

function ids(home: Home): string[] {
  try {
    return readdirSync(home.boxes).filter(entry => ID.test(entry))
  } catch {
    return []
  }
}

/** Every box that is complete; one that is being created or removed right now is not listed. */
export function list(home: Home): BoxRecord[] {
  const records: BoxRecord[] = []
  for (const id of ids(home)) {
    try {
      records.push(readRecord(home.box(id)))
    } catch (error) {
      if (!(error instanceof BoxError)) throw error
    }
  }
  return records.sort((a, b) => (a.created < b.created ? -1 : a.created > b.created ? 1 : 0))
}

/** Removes a box's folder, its record first, so that nobody meets half of a box. */
export function discard(home: Home, folder: BoxFolder, name: string | undefined): void {
  removeFile(folder.record)
  leaveNetworks(home, folder.id)
  removeFolder(folder.path)
  if (name === undefined) return
  withLockNow(namesLock(home), () => {
    if (readName(home, name) === folder.id) removeFile(join(home.names, name))
  })
}
