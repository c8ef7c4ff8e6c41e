/** `vitrine run -- true` as a user types it: with a boot, and from a template. */
import { spawnSync } from 'node:child_process'
import { assetPath } from '../../src/host/assets.ts'
import type { Sample } from '../harness/benchmark.ts'

/** With this set, every Node parses all certificates in it when it starts, which takes longer than the rest of its start. */
const { NODE_EXTRA_CA_CERTS: _, ...ENVIRONMENT } = process.env

function run(home: string, ...options: string[]): number {
  const began = performance.now()
  const { status, stderr } = spawnSync(assetPath('cli.cjs'), ['run', ...options, '--', 'true'], {
    env: { ...ENVIRONMENT, VITRINE_HOME: home },
    encoding: 'utf8',
  })
  const ms = performance.now() - began
  if (status !== 0) throw new Error(`vitrine run ended with ${status}: ${stderr}`)
  return ms
}

export function sampleTemplate(home: string): Sample {
  run(home) // leaves the template, if there is none
  const cold = run(home, '--cold')
  const warm = run(home)
  return { 'vitrine run -- true, cold': cold, 'vitrine run -- true, warm': warm, 'cold / warm': cold / warm }
}
