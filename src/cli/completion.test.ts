import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { assetPath } from '../host/assets.ts'
import { candidates } from './completion.ts'

describe('completion', () => {
  it('knows commands and their options', async () => {
    expect(await candidates(['ru'])).toEqual(['run'])
    expect(await candidates([''])).toContain('doctor')
    expect(await candidates(['run', '--mem'])).toEqual(['--memory'])
    expect(await candidates(['nonsense', ''])).toEqual([])
    expect(await candidates(['help', 'sta'])).toEqual(['start', 'stats'])
    expect(await candidates(['network', ''])).toEqual(['ls', 'create', 'rm'])
    expect(await candidates(['ps', '--h'])).toEqual(['--help'])
  })

  it('is a script that bash takes, and that asks this program', () => {
    const cli = assetPath('cli.js')
    const script = `vitrine() { '${process.execPath}' '${cli}' "$@"; }
      source <(vitrine completion bash)
      COMP_WORDS=(vitrine run --memo) COMP_CWORD=2
      _vitrine; echo "\${COMPREPLY[@]}"`
    expect(spawnSync('bash', ['-c', script], { encoding: 'utf8' })).toMatchObject({ stdout: '--memory\n', stderr: '' })
  })
})
