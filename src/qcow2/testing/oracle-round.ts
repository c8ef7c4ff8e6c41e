/**
 * One round: a chain of random images partly made by QEMU, written by us and by qemu-io in turns, and judged by
 * qemu-img check and compare against a plain model.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createDisk } from '../create.ts'
import { openDisk } from '../open.ts'
import { qemuCheck, qemuImgOk, qemuIoOk } from './qemu.ts'
import { Random } from './random.ts'
import { contentsOf, expectSame, type Geometry, ModelledDisk, randomGeometry } from './random-disk.ts'

interface Layer {
  readonly path: string
  readonly format: 'raw' | 'qcow2'
  readonly size: number
}

export function oracleRound(seed: number, parent: string, steps: number): number {
  const random = new Random(seed)
  const folder = mkdtempSync(join(parent, `round-${seed}-`))
  try {
    return playRound(random, folder, steps)
  } catch (error) {
    throw new Error(`seed ${seed}: ${(error as Error).message}`, { cause: error })
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function playRound(random: Random, folder: string, steps: number): number {
  const depth = random.below(4)
  let below: Layer | undefined
  let model: Uint8Array = new Uint8Array(0)
  let operations = 0
  for (let level = 0; level <= depth; level++) {
    const path = join(folder, `level${level}`)
    if (level === 0 && depth > 0 && random.chance(0.4)) {
      model = random.bytes(512 * (1 + random.below(4000)))
      writeFileSync(path, model)
      below = { path, format: 'raw', size: model.length }
      continue
    }
    const geometry = randomGeometry(random)
    const size = Math.ceil((below && random.chance(0.7) ? below.size : geometry.size) / 512) * 512
    create(random, path, { ...geometry, size }, below)
    const grown = new Uint8Array(size)
    grown.set(model.subarray(0, size))
    model = grown
    operations += workOn(random, path, model, steps, geometry.refcountBits)
    below = { path, format: 'qcow2', size }
  }
  return operations
}

function create(random: Random, path: string, geometry: Geometry, below: Layer | undefined): void {
  if (random.chance(0.5)) {
    createDisk(path, {
      format: 'qcow2',
      ...geometry,
      ...(below ? { backing: { file: below.path, format: below.format } } : {}),
    })
    return
  }
  const options = [
    `cluster_size=${geometry.clusterSize}`,
    geometry.version === 2 ? 'compat=0.10' : `compat=1.1,refcount_bits=${geometry.refcountBits}`,
  ]
  const backing = below ? ['-b', below.path, '-F', below.format] : []
  qemuImgOk('create', '-q', '-f', 'qcow2', '-o', options.join(','), ...backing, path, String(geometry.size))
}

/** Some sessions of ours with QEMU's in between; each ends with QEMU's verdict. */
function workOn(random: Random, path: string, model: Uint8Array, steps: number, refcountBits = 16): number {
  let operations = 0
  for (let session = 0; session < 2; session++) {
    if (random.chance(0.6)) operations += letQemuWrite(random, path, model)
    // One bit cannot count two references, so there can be no snapshot then.
    if (session === 0 && refcountBits > 1 && random.chance(0.3)) qemuImgOk('snapshot', '-c', `s${session}`, path)
    const image = openDisk(path, {
      format: 'qcow2',
      l2CacheBytes: random.pick([8192, 65536, 1 << 20]),
      refcountCacheBytes: random.pick([8192, 65536]),
    })
    try {
      const disk = new ModelledDisk(image, model, random)
      disk.verify()
      for (let i = 0; i < steps; i++) disk.step()
      disk.verify()
      operations += steps
    } finally {
      image.close()
    }
    judge(path, model)
  }
  return operations
}

function letQemuWrite(random: Random, path: string, model: Uint8Array): number {
  const commands: string[] = []
  for (let i = 0; i < 6; i++) {
    const offset = random.below(Math.floor(model.length / 512)) * 512
    const length = Math.min(model.length - offset, 512 * (1 + random.below(200)))
    if (random.chance(0.75)) {
      const value = 1 + random.below(255)
      commands.push(`write -P ${value} ${offset} ${length}`)
      model.fill(value, offset, offset + length)
    } else {
      commands.push(`write -z ${random.chance(0.5) ? '-u ' : ''}${offset} ${length}`)
      model.fill(0, offset, offset + length)
    }
  }
  qemuIoOk(path, 'qcow2', ...commands)
  return commands.length
}

function judge(path: string, model: Uint8Array): void {
  const report = qemuCheck(path)
  if ((report.corruptions ?? 0) > 0 || (report.leaks ?? 0) > 0 || report['check-errors'] > 0) {
    throw new Error(`qemu-img check: ${JSON.stringify(report)}`)
  }
  const raw = `${path}.model`
  writeFileSync(raw, model)
  qemuImgOk('compare', '-f', 'qcow2', '-F', 'raw', path, raw)
  const again = openDisk(path, { format: 'qcow2', readOnly: true })
  try {
    expectSame(contentsOf(again), model, 'reopened')
  } finally {
    again.close()
    rmSync(raw)
  }
}
