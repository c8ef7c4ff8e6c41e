/** The boxes of a home: finding, listing, creating and removing their folders, safely between processes. */
import { randomBytes } from 'node:crypto'
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { BoxError } from './errors.ts'
import type { BoxFolder, Home } from './home.ts'
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

/** Makes an empty folder for a new box and takes its name; `undo` with `discard`. */
export function reserve(home: Home, wanted: string | undefined): { folder: BoxFolder; name: string } {
  home.prepare()
  if (wanted !== undefined) checkName(wanted)
  const id = randomBytes(6).toString('hex')
  const name = wanted ?? id
  const folder = home.box(id)
  mkdirSync(folder.path, { mode: 0o700 })
  try {
    takeName(home, name, id)
  } catch (error) {
    rmSync(folder.path, { recursive: true })
    throw error
  }
  return { folder, name }
}

/** Creates the name's file exclusively. One left behind by a box that is gone is taken over. */
function takeName(home: Home, name: string, id: string): void {
  const path = join(home.names, name)
  for (;;) {
    try {
      writeFileSync(path, id, { flag: 'wx' })
      return
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    }
    const holder = readName(home, name)
    if (holder !== undefined && isThere(home.box(holder))) {
      throw new BoxError(
        'NAME_IN_USE',
        `a box named '${name}' exists: choose another name, or remove it with 'vitrine rm ${name}'`,
      )
    }
    rmSync(path, { force: true })
  }
}

function readName(home: Home, name: string): string | undefined {
  try {
    return readFileSync(join(home.names, name), 'utf8')
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
  rmSync(folder.record, { force: true })
  rmSync(folder.path, { recursive: true, force: true })
  if (name !== undefined && readName(home, name) === folder.id) rmSync(join(home.names, name), { force: true })
}
