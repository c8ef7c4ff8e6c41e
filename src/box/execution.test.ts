/** Commands as a box's user has them, on an agent that runs natively on this host. */
import type { ChildProcess } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { AgentClient } from './agent/client.ts'
import { Execution } from './execution.ts'
import { startAgent } from './testing/native-agent.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-execution-'))
const socketPath = join(folder, 'agent.sock')
let agent: ChildProcess
let client: AgentClient

beforeAll(async () => {
  agent = await startAgent(socketPath)
  client = await AgentClient.connect(connect(socketPath))
})

afterAll(() => {
  client.close()
  agent.kill('SIGKILL')
  rmSync(folder, { recursive: true })
})

const sh = (script: string): Execution =>
  new Execution(client.exec({ argv: ['sh', '-c', script], env: { PATH: '/usr/bin:/bin' }, noInput: true }))

it('collects output, and lets listeners hear it as it comes', async () => {
  const heard: string[] = []
  const result = await sh('printf "a\\377b"; echo wrong >&2; exit 3').result({
    onStdout: chunk => heard.push(`out ${chunk.toString('latin1')}`),
    onStderr: chunk => heard.push(`err ${chunk}`),
  })
  expect(result).toMatchObject({ exitCode: 3, stderr: 'wrong\n', stdoutBytes: Buffer.from('a\xffb', 'latin1') })
  expect(heard.sort()).toEqual(['err wrong\n', 'out a\xffb'])
})

it('kills a command that writes more than is to be kept', async () => {
  const endless = sh('yes')
  await expect(endless.result({ maxOutputBytes: 100_000 })).rejects.toMatchObject({
    code: 'OUTPUT_LIMIT',
    message: expect.stringMatching(/more than 100000 bytes.*maxOutputBytes.*spawn/),
  })
  expect(await endless.exit).toMatchObject({ signal: 'SIGKILL' })
  // Exactly as much is allowed, of both together.
  const exact = await sh('printf 12345; printf 67890 >&2').result({ maxOutputBytes: 10 })
  expect([exact.stdout, exact.stderr]).toEqual(['12345', '67890'])
})

it('ends the command when a listener fails', async () => {
  const endless = sh('yes')
  const onStdout = (): void => {
    throw new Error('no more of this')
  }
  await expect(endless.result({ onStdout })).rejects.toThrow('no more of this')
  expect(await endless.exit).toMatchObject({ signal: 'SIGKILL' })
})

it('names every signal', async () => {
  for (const name of ['ILL', 'BUS', 'FPE', 'SYS', 'XCPU'])
    expect(await sh(`kill -${name} $$`).result()).toMatchObject({ signal: `SIG${name}` })
})

it('refuses signals that nobody knows', () => {
  expect(() => sh('true').kill('SIGNONSENSE')).toThrow(/SIGTERM/)
})
