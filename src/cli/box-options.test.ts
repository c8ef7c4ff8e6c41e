import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { BOX_OPTIONS, bandwidth, environment, parsePort } from './box-options.ts'
import { parseCommandLine } from './command.ts'
import { parseCopy } from './run.ts'

describe('port mappings', () => {
  it('are one, any, a range, an address, a protocol', () => {
    expect(parsePort('8080:80')).toEqual({ host: 8080, guest: 80, protocol: 'tcp' })
    expect(parsePort('0:80/udp')).toEqual({ host: 0, guest: 80, protocol: 'udp' })
    expect(parsePort('8000-8009:80-89')).toEqual({ host: 8000, guest: 80, range: 10, protocol: 'tcp' })
    expect(parsePort('0:80-81')).toEqual({ host: 0, guest: 80, range: 2, protocol: 'tcp' })
    expect(parsePort('127.0.0.2:1:2')).toMatchObject({ bind: '127.0.0.2', host: 1, guest: 2 })
    expect(parsePort('[::1]:1:2')).toMatchObject({ bind: '::1' })
  })

  it('are nothing else', () => {
    for (const text of ['80', '80:', 'a:b', '8000-8009:80', '9-1:9-1', '1:2/sctp', '1:2:3:4'])
      expect(() => parsePort(text)).toThrow(expect.objectContaining({ code: 'USAGE' }))
  })
})

it('bandwidths are bytes a second', () => {
  const command = { name: 'x', summary: '', usage: '', options: BOX_OPTIONS, examples: [], run: async () => 0 }
  const read = (...args: string[]) => bandwidth(parseCommandLine(command, args))
  expect(read()).toBeUndefined()
  expect(read('--max-up', '500K', '--max-down=2.5M')).toEqual({ fromGuest: 500_000, toGuest: 2_500_000 })
  expect(() => read('--max-up', 'fast')).toThrow(/bytes a second/)
})

describe('the environment', () => {
  const command = { name: 'x', summary: '', usage: '', options: BOX_OPTIONS, examples: [], run: async () => 0 }
  const read = (...args: string[]) => environment(parseCommandLine(command, args))

  it('comes from files and options, of which the last say wins', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'vitrine-env-')), 'env')
    writeFileSync(file, '# what the service needs\nA=from file\r\n\n  B="quoted = as it is"\nPATH\nUNSET_EVERYWHERE\n')
    expect(read('--env-file', file, '-e', 'A=given', '-e', 'C=')).toEqual({
      A: 'given',
      B: '"quoted = as it is"',
      C: '',
      PATH: process.env.PATH,
    })
    rmSync(dirname(file), { recursive: true })
  })

  it('is refused when it makes no sense', () => {
    expect(() => read('--env-file', '/no/such/file')).toThrow(/\/no\/such\/file cannot be read \(ENOENT\)/)
    expect(() => read('-e', '=x')).toThrow(/write NAME=VALUE/)
  })
})

it('what is copied has a place in the box', () => {
  expect(parseCopy('./a:b:/root/a')).toEqual({ from: './a:b', to: '/root/a' })
  for (const text of ['./a', './a:b', ':/a', '']) expect(() => parseCopy(text)).toThrow(/HOST:GUEST/)
})
