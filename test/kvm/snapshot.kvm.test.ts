/** The same on kvm-amd, in a home of its own with the kernel from outside. All: `VITRINE_SNAPSHOT_ROUNDS=50 VITRINE_HOST_MIB=12288 npm run test:kvm -- snapshot`. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import { Runtime } from '../../src/box/runtime.ts'
import { kernelsFolder } from '../../src/image/kernel/cache.ts'
import { snapshotTests } from '../snapshot/under-load.ts'

const scratch = mkdtempSync(join(tmpdir(), 'vitrine-kvm-snapshot-'))
afterAll(() => rmSync(scratch, { recursive: true }))
const home = join(scratch, 'home')
mkdirSync(home)
symlinkSync(kernelsFolder(), join(home, 'kernels'))

snapshotTests(new Runtime({ home, defaults: { accel: 'kvm' } }), { rounds: 2, forks: 2, limitMs: 300_000 })
