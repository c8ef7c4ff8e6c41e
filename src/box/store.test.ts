import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Home } from './home.ts'
import { type BoxConfig, readRecord, writeRecord } from './record.ts'
import { checkName, discard, find, list, reserve } from './store.ts'

let home: Home
beforeEach(() => {
  home = new Home(mkdtempSync(join(tmpdir(), 'vitrine-home-')))
})
afterEach(() => rmSync(home.path, { recursive: true }))

function add(name?: string): string {
  const { folder, name: given } = reserve(home, name)
  writeRecord(folder, {
    id: folder.id,
    name: given,
    created: new Date().toISOString(),
    imageId: 'x',
    baseDisk: 'y',
    imageEntrypoint: [],
    imageCmd: [],
    config: {} as BoxConfig,
  })
  return folder.id
}

describe('the store', () => {
  it('finds a box by name, by id and by the beginning of its id', () => {
    const id = add('web')
    expect(find(home, 'web').id).toBe(id)
    expect(find(home, id).id).toBe(id)
    expect(find(home, id.slice(0, 6)).id).toBe(id)
    expect(readRecord(find(home, 'web')).name).toBe('web')
    expect(() => find(home, 'absent')).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
    expect(() => find(home, '../boxes')).toThrow(expect.objectContaining({ code: 'NOT_FOUND' }))
  })

  it('keeps names unique, and gives them back', () => {
    const id = add('web')
    expect(() => reserve(home, 'web')).toThrow(expect.objectContaining({ code: 'NAME_IN_USE' }))
    expect(readdirSync(home.boxes)).toEqual([id])
    discard(home, home.box(id), 'web')
    expect(list(home)).toEqual([])
    expect(add('web')).not.toBe(id)
  })

  it('takes over the name of a box that vanished', () => {
    const id = add('web')
    rmSync(home.box(id).path, { recursive: true })
    expect(() => find(home, 'web')).toThrow(/no box 'web'/)
    add('web')
    expect(list(home)).toHaveLength(1)
  })

  it('clears away a name that was taken by a process which was killed before it had written whose it is', () => {
    home.prepare()
    for (const name of ['mine', 'other']) writeFileSync(join(home.names, name), '')
    expect(() => find(home, 'mine')).toThrow(/no box 'mine'/)
    add('mine')
    expect(readdirSync(home.names)).toEqual(['mine'])
  })

  it('clears away what was left of a box by a process which was killed at the very first', () => {
    home.prepare()
    mkdirSync(join(home.boxes, '.new-0123456789ab'))
    const id = add('mine')
    expect(readdirSync(home.boxes)).toEqual([id])
  })

  it('does not list what is incomplete or damaged, and says so when asked for it', () => {
    reserve(home, 'half')
    const id = add('broken')
    writeFileSync(home.box(id).record, '{')
    expect(list(home)).toEqual([])
    expect(() => readRecord(find(home, 'broken'))).toThrow(/is damaged/)
    writeFileSync(home.box(id).record, '{"version": 99}')
    expect(() => readRecord(find(home, 'broken'))).toThrow(/another version/)
  })

  it('refuses names that are none', () => {
    for (const name of ['', '-x', '.', '..', 'a/b', 'a b', 'ü', 'x'.repeat(64)]) {
      expect(() => checkName(name)).toThrow(expect.objectContaining({ code: 'INVALID' }))
    }
    for (const name of ['a', 'web-1', 'A.b_c', '0']) checkName(name)
  })

  it('refuses a home that is too deep for sockets', () => {
    expect(() => new Home(`/tmp/${'x'.repeat(100)}`)).toThrow(/bytes shorter/)
    expect(existsSync(`/tmp/${'x'.repeat(100)}`)).toBe(false)
  })
})
