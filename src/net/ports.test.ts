/** Ports that cannot be: each with an error that says which and why. */

import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import type { PortForward } from './description.ts'
import { NetworkStack } from './stack.ts'

function opened(ports: readonly PortForward[]): unknown {
  let stack: NetworkStack | undefined
  try {
    stack = new NetworkStack({ ports, resolvers: ['127.0.0.1'] })
    return stack.ports.open
  } catch (error) {
    return { code: (error as { code?: string }).code, message: (error as Error).message }
  } finally {
    stack?.close()
  }
}

const mayDrop = process.getuid?.() === 0 && typeof process.seteuid === 'function'

describe('a port that cannot be opened', () => {
  it('is in use', async () => {
    const server = createServer()
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    expect(opened([{ host: port, guest: 80 }])).toMatchObject({
      code: 'PORT_IN_USE',
      message: expect.stringContaining(`tcp port ${port} of 127.0.0.1 is in use`),
    })
    // A range is opened as a whole or not at all.
    expect(opened([{ host: port - 1, guest: 80, range: 2 }])).toMatchObject({ code: 'PORT_IN_USE' })
    server.close()
    expect(opened([{ host: port - 1, guest: 80, range: 2 }])).toHaveLength(2)
  })

  it.skipIf(!mayDrop)('is privileged, and we are not', () => {
    process.seteuid!(65_534)
    try {
      expect(opened([{ host: 81, guest: 80 }])).toMatchObject({
        code: 'PORT_DENIED',
        message: expect.stringContaining('tcp port 81 of 127.0.0.1 needs a right'),
      })
    } finally {
      process.seteuid!(0)
    }
  })

  it('is no port, no protocol, or at no address of this host', () => {
    for (const port of [
      { host: 70_000, guest: 80 },
      { host: 1, guest: 0 },
      { host: 0, guest: 65_535, range: 2 },
      { host: 0, guest: 80, range: 0 },
      { host: 0.5, guest: 80 },
      { host: 0, guest: 80, protocol: 'sctp' as 'tcp' },
      { host: 0, guest: 80, bind: '192.0.2.77' },
    ])
      expect(opened([port])).toMatchObject({ code: 'BAD_PORT' })
    expect(opened([{ host: 0, guest: 80, bind: 'here' }])).toMatchObject({ code: 'BAD_ADDRESS' })
  })

  it('is a file of somebody else, which stays', () => {
    const folder = mkdtempSync(join(tmpdir(), 'vitrine-ports-'))
    const file = join(folder, 'precious')
    writeFileSync(file, 'data')
    const stack = new NetworkStack({ resolvers: ['127.0.0.1'] })
    expect(() => stack.ports.listenUnix(file, 80)).toThrow(expect.objectContaining({ code: 'BAD_PORT' }))
    expect(statSync(file).size).toBe(4)
    stack.ports.listenUnix(join(folder, 'sock'), 80)
    expect(stack.ports.openUnix).toEqual([{ path: join(folder, 'sock'), guest: 80 }])
    stack.close()
    expect(statSync(join(folder, 'sock'), { throwIfNoEntry: false })).toBeUndefined()
    rmSync(folder, { recursive: true })
  })
})
