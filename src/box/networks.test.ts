import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { Home } from './home.ts'
import { checkNetworks, createNetwork, joinNetwork, leaveNetworks, listNetworks, removeNetwork } from './networks.ts'

let home: Home

beforeEach(() => {
  home = new Home(mkdtempSync(join(tmpdir(), 'vitrine-networks-')))
})

afterEach(() => rmSync(home.path, { recursive: true }))

const code = (wanted: string) => expect.objectContaining({ code: wanted })
const box = (id: string, name = id) => ({ id, name })

describe('named networks', () => {
  it('are made, listed and removed', () => {
    expect(listNetworks(home)).toEqual([])
    expect(createNetwork(home, 'dev')).toEqual({ name: 'dev', subnet: '10.89.0.0/24', members: [] })
    expect(createNetwork(home, 'Test').subnet).toBe('10.89.1.0/24')
    expect(() => createNetwork(home, 'dev')).toThrow(code('NAME_IN_USE'))
    for (const name of ['', '../dev', 'a b', 'a.b', 'x'.repeat(64)])
      expect(() => createNetwork(home, name)).toThrow(code('INVALID'))
    removeNetwork(home, 'dev')
    expect(listNetworks(home).map(({ name }) => name)).toEqual(['Test'])
    expect(createNetwork(home, 'again').subnet).toBe('10.89.0.0/24')
  })

  it('that are not there are said so', () => {
    for (const act of [
      () => removeNetwork(home, 'none'),
      () => checkNetworks(home, ['none']),
      () => joinNetwork(home, '../names', box('a')),
    ])
      expect(act).toThrow(code('NO_NETWORK'))
  })

  it('give each box a place that it keeps until it is gone', () => {
    createNetwork(home, 'dev')
    const first = joinNetwork(home, 'dev', box('aaaa', 'Web'))
    expect(first.address).toBe('10.89.0.2')
    expect(joinNetwork(home, 'dev', box('bbbb', 'db')).address).toBe('10.89.0.3')
    expect(joinNetwork(home, 'dev', box('aaaa', 'Web'))).toEqual(first)
    expect(readFileSync(join(first.folder, 'names/web'), 'utf8')).toBe('10.89.0.2\n')
    expect(() => removeNetwork(home, 'dev')).toThrow(code('WRONG_STATE'))
    leaveNetworks(home, 'aaaa')
    expect(listNetworks(home)[0]!.members).toEqual([{ id: 'bbbb', address: '10.89.0.3' }])
    expect(joinNetwork(home, 'dev', box('cccc')).address).toBe('10.89.0.2')
    for (const id of ['bbbb', 'cccc']) leaveNetworks(home, id)
    removeNetwork(home, 'dev')
  })

  it('are full at some point', () => {
    createNetwork(home, 'dev')
    const { folder } = joinNetwork(home, 'dev', box('first'))
    for (let i = 3; i < 255; i++) writeFileSync(join(folder, 'members', String(i)), `id${i}`)
    expect(() => joinNetwork(home, 'dev', box('one-more'))).toThrow(/full/)
  })
})
