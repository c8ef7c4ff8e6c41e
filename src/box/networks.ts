/**
 * Named networks of a home: boxes in one reach each other by name, without touching the host's network (src/net/neighbours.ts).
 *
 *   home/
 *     networks/<name>      its number, which makes it 10.89.<number>.0/24
 *     net/<number>/        members/<n>: the id of the box with the address that ends in n; names/<box>: its address; sockets
 *
 * Everything is made with calls that only one process can win, so that any number may work on it.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { removeFile, removeFolder } from '../host/remove.ts'
import type { NamedNetwork } from '../net/description.ts'
import { BoxError } from './errors.ts'
import type { Home } from './home.ts'

const NAME = /^[a-zA-Z0-9][a-zA-Z0-9_-]{0,62}$/
const MAX_NETWORKS = 256
const FIRST_MEMBER = 2
const LAST_MEMBER = 254

/** A named network and who is in it. */
export interface NetworkInfo {
  readonly name: string
  readonly subnet: string
  /** Boxes that have joined, by their addresses' order. */
  readonly members: readonly { readonly id: string; readonly address: string }[]
}

const folderOf = (home: Home, number: number): string => join(home.networkFolders, String(number))
const addressOf = (number: number, member: number): string => `10.89.${number}.${member}`
const isCode = (error: unknown, code: string): boolean => (error as NodeJS.ErrnoException).code === code

function entries(path: string): string[] {
  try {
    return readdirSync(path)
  } catch (error) {
    if (isCode(error, 'ENOENT')) return []
    throw error
  }
}

/** Makes something that must not exist; false when it does. */
function exclusively(make: () => void): boolean {
  try {
    make()
    return true
  } catch (error) {
    if (isCode(error, 'EEXIST')) return false
    throw error
  }
}

export function createNetwork(home: Home, name: string): NetworkInfo {
  if (!NAME.test(name)) {
    throw new BoxError(
      'INVALID',
      `'${name}' cannot be a network's name: use 1 to 63 letters, digits, '_' or '-', starting with a letter or a digit`,
    )
  }
  home.prepare()
  mkdirSync(home.networks, { recursive: true, mode: 0o700 })
  mkdirSync(home.networkFolders, { recursive: true, mode: 0o700 })
  let number = 0
  while (number < MAX_NETWORKS && !exclusively(() => mkdirSync(folderOf(home, number), { mode: 0o700 }))) number++
  if (number === MAX_NETWORKS) throw new BoxError('INVALID', `there are ${MAX_NETWORKS} networks already: remove some`)
  for (const part of ['members', 'names']) mkdirSync(join(folderOf(home, number), part), { mode: 0o700 })
  if (!exclusively(() => writeFileSync(join(home.networks, name), `${number}\n`, { flag: 'wx' }))) {
    removeFolder(folderOf(home, number))
    throw new BoxError('NAME_IN_USE', `a network named '${name}' exists`)
  }
  return describe(home, name, number)
}

/** The network's number; NO_NETWORK when there is no such. */
function numberOf(home: Home, name: string): number {
  let number = -1
  if (NAME.test(name)) {
    try {
      number = Number.parseInt(readFileSync(join(home.networks, name), 'utf8'), 10)
    } catch (error) {
      if (!isCode(error, 'ENOENT')) throw error
    }
  }
  if (number >= 0 && number < MAX_NETWORKS) return number
  throw new BoxError('NO_NETWORK', `there is no network '${name}': make it with 'vitrine network create ${name}'`)
}

export function checkNetworks(home: Home, names: readonly string[]): void {
  for (const name of names) numberOf(home, name)
}

function describe(home: Home, name: string, number: number): NetworkInfo {
  const members = entries(join(folderOf(home, number), 'members'))
    .map(Number)
    .sort((a, b) => a - b)
    .map(member => ({ id: memberId(home, number, member), address: addressOf(number, member) }))
  return { name, subnet: `10.89.${number}.0/24`, members }
}

function memberId(home: Home, number: number, member: number): string {
  try {
    return readFileSync(join(folderOf(home, number), 'members', String(member)), 'utf8').trim()
  } catch {
    return ''
  }
}

export function listNetworks(home: Home): NetworkInfo[] {
  return entries(home.networks)
    .sort()
    .map(name => describe(home, name, numberOf(home, name)))
}

/** Removes a network that no box is in. */
export function removeNetwork(home: Home, name: string): void {
  const number = numberOf(home, name)
  const { members } = describe(home, name, number)
  if (members.length > 0) {
    const ids = members.map(({ id }) => id).join(', ')
    throw new BoxError('WRONG_STATE', `boxes are in the network '${name}': remove them first (${ids})`)
  }
  removeFile(join(home.networks, name))
  removeFolder(folderOf(home, number))
}

/** The box's place in the network, the same for as long as the box exists. */
export function joinNetwork(
  home: Home,
  name: string,
  box: { readonly id: string; readonly name: string },
): NamedNetwork {
  const number = numberOf(home, name)
  const folder = folderOf(home, number)
  const members = join(folder, 'members')
  const taken = new Set(entries(members).map(Number))
  let own = [...taken].find(member => memberId(home, number, member) === box.id)
  for (let member = FIRST_MEMBER; member <= LAST_MEMBER && own === undefined; member++) {
    if (taken.has(member)) continue
    if (exclusively(() => writeFileSync(join(members, String(member)), box.id, { flag: 'wx' }))) own = member
  }
  if (own === undefined) throw new BoxError('INVALID', `the network '${name}' is full: remove boxes that are in it`)
  const address = addressOf(number, own)
  writeFileSync(join(folder, 'names', box.name.toLowerCase()), `${address}\n`)
  return { name, folder, address }
}

/** Gives up the box's place in every network. */
export function leaveNetworks(home: Home, id: string): void {
  for (const number of entries(home.networkFolders).map(Number)) {
    const folder = folderOf(home, number)
    for (const member of entries(join(folder, 'members')).map(Number)) {
      if (memberId(home, number, member) !== id) continue
      const address = addressOf(number, member)
      for (const name of entries(join(folder, 'names'))) {
        const path = join(folder, 'names', name)
        if (readFileSync(path, 'utf8').trim() === address) removeFile(path)
      }
      removeFile(join(folder, 'members', String(member)))
    }
  }
}

/** The named networks of a home, for `Runtime`. */
export class Networks {
  readonly #home: Home

  constructor(home: Home) {
    this.#home = home
  }

  create(name: string): NetworkInfo {
    return createNetwork(this.#home, name)
  }

  list(): NetworkInfo[] {
    return listNetworks(this.#home)
  }

  /** Removes a network that no box is in. */
  remove(name: string): void {
    removeNetwork(this.#home, name)
  }
}
