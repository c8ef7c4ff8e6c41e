/** `npm run fuzz -- qcow2`: random operations judged by qemu-img, power cuts, and damaged images, for as long as asked. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { createDisk } from '../../src/qcow2/create.ts'
import { openDisk } from '../../src/qcow2/open.ts'
import { tryDamaged } from '../../src/qcow2/testing/damage.ts'
import { writeDisk } from '../../src/qcow2/testing/disk-io.ts'
import { oracleRound } from '../../src/qcow2/testing/oracle-round.ts'
import { playPowerCuts } from '../../src/qcow2/testing/power-cut.ts'
import { qemuCheck, qemuMissing } from '../../src/qcow2/testing/qemu.ts'
import { Random } from '../../src/qcow2/testing/random.ts'

/** True when nothing was found. The seed of a failure is printed; `--seed` starts there. */
export async function fuzz(args: readonly string[]): Promise<boolean> {
  const { values } = parseArgs({
    args: [...args],
    options: { seed: { type: 'string' }, count: { type: 'string' }, steps: { type: 'string' } },
  })
  const first = Number(values.seed ?? Math.floor(Math.random() * 1e6))
  const count = Number(values.count ?? 50)
  const steps = Number(values.steps ?? 200)
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-fuzz-qcow2-'))
  if (qemuMissing) console.error(`without the judge: ${qemuMissing}`)
  let operations = 0
  let cuts = 0
  let damages = 0
  let failures = 0
  try {
    for (let seed = first; seed < first + count; seed++) {
      try {
        if (!qemuMissing) operations += oracleRound(seed, folder, steps)
        cuts += playPowerCuts(seed, {
          steps: 30,
          ...(qemuMissing ? {} : { sampleEvery: 199, onSample: image => judge(image, folder) }),
        }).cuts
        damages += damage(seed, folder)
      } catch (error) {
        failures++
        console.error(`seed ${seed}: ${(error as Error).stack}`)
      }
      process.stdout.write(
        `\rseed ${seed}: ${operations} operations, ${cuts} power cuts, ${damages} damaged images, ${failures} failures`,
      )
    }
    process.stdout.write('\n')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
  return failures === 0
}

function judge(image: Uint8Array, folder: string): void {
  const path = join(folder, 'cut.qcow2')
  writeFileSync(path, image)
  const report = qemuCheck(path)
  if ((report.corruptions ?? 0) + report['check-errors'] > 0)
    throw new Error(`qemu-img check: ${JSON.stringify(report)}`)
}

function damage(seed: number, folder: string): number {
  const random = new Random(seed)
  const path = join(folder, 'damaged.qcow2')
  createDisk(path, { format: 'qcow2', size: 1024 * 1024, clusterSize: 4096, overwrite: true })
  const image = openDisk(path, { format: 'qcow2' })
  writeDisk(image, 8192, random.bytes(512 * (1 + random.below(150))))
  image.close()
  const whole = readFileSync(path)
  for (let i = 0; i < 60; i++) tryDamaged(whole, path, random)
  return 60
}
