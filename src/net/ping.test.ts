/** Echo requests to the world, in a namespace where ordinary users may ping, and in one where they may not. */
import { spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { wireUnavailable } from './testing/wire.ts'

const reason = wireUnavailable()
const namespace = `vitrine-ping-${process.pid}`

interface Probe {
  readonly answers: readonly { readonly six: boolean }[]
}

function probe(range: string): Probe {
  const program = fileURLToPath(new URL('testing/ping-probe.ts', import.meta.url))
  const prepare = `ip link set lo up; echo "${range}" > /proc/sys/net/ipv4/ping_group_range`
  const command = ['netns', 'exec', namespace, 'sh', '-c', `${prepare}; exec "$0" --import tsx "$1"`]
  const { stdout, stderr } = spawnSync('ip', [...command, process.execPath, program], {
    encoding: 'utf8',
    timeout: 20_000,
  })
  expect(stdout, stderr).not.toBe('')
  const result = JSON.parse(stdout) as Probe
  return { ...result, answers: [...result.answers].sort((a, b) => Number(a.six) - Number(b.six)) }
}

describe.skipIf(reason)(`pings to the world${reason ? `: ${reason}` : ''}`, () => {
  beforeAll(() => void spawnSync('ip', ['netns', 'add', namespace]))
  afterAll(() => void spawnSync('ip', ['netns', 'del', namespace]))

  it('are sent where the host allows it, and answered with the numbers of the guest', { timeout: 30_000 }, () => {
    const answer = { id: 0x1234, sequence: 7, text: 'anybody there?', checksum: true }
    expect(probe('0 2147483647')).toEqual({
      answers: [
        { six: false, type: 0, ...answer },
        { six: true, type: 129, ...answer },
      ],
      pings: 2,
      pingsRefused: 0,
    })
  })

  it('are answered with an error where it does not', { timeout: 30_000 }, () => {
    expect(probe('1 0')).toMatchObject({
      answers: [
        { six: false, type: 3, checksum: true },
        { six: true, type: 1, checksum: true },
      ],
      pings: 0,
      pingsRefused: 2,
    })
  })
})
