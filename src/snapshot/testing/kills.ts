/** Kills a process that works on a store, again and again, and looks at what is left: every snapshot is absent or whole. */
import { spawn } from 'node:child_process'
import { copyFileSync, createWriteStream, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { assetPath } from '../../host/assets.ts'
import { checkDisk } from '../../qcow2/check.ts'
import { openDisk } from '../../qcow2/open.ts'
import { readDisk } from '../../qcow2/testing/disk-io.ts'
import { Random } from '../../qcow2/testing/random.ts'
import { exportSnapshot } from '../export.ts'
import { namesIn } from '../folder.ts'
import type { SnapshotManifest } from '../manifest.ts'
import type { SnapshotStore } from '../store.ts'
import { TestHome } from './home.ts'
import { KILL_BOXES, pagesOf, pattern } from './kill-pattern.ts'

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))

export interface KillResult {
  readonly kills: number
  /** Snapshots that were looked at after a kill, all of them whole. */
  readonly checked: number
  /** Files that killed processes had left, and the next sweep removed. */
  readonly swept: number
}

export async function killAgainAndAgain(kills: number, seed: number, log: (text: string) => void): Promise<KillResult> {
  const home = new TestHome()
  const scratch = mkdtempSync(join(tmpdir(), 'vitrine-kill-'))
  // Beside node_modules, so that koffi is found; a bundle starts three times as fast as sources.
  const bundle = mkdtempSync(join(ROOT, 'node_modules', '.vitrine-kill-'))
  const random = new Random(seed)
  let checked = 0
  let swept = 0
  try {
    const child = join(bundle, 'kill-child.mjs')
    await build({
      entryPoints: [join(ROOT, 'src/snapshot/testing/kill-child.ts')],
      outfile: child,
      bundle: true,
      format: 'esm',
      platform: 'node',
      target: 'node20',
      packages: 'external',
      logLevel: 'error',
    })
    mkdirSync(join(bundle, 'wasm'))
    copyFileSync(assetPath('wasm/snapshot.wasm'), join(bundle, 'wasm/snapshot.wasm'))
    for (const id of KILL_BOXES) mkdirSync(join(home.path, 'boxes', id), { recursive: true })
    const stream = join(scratch, 'stream')
    await pipeline(exportSnapshot(home.store, await seedSnapshot(home)), createWriteStream(stream))
    for (let round = 0; round < kills; round++) {
      await killOnce(child, [home.path, String(seed * 1000 + round), stream], random)
      swept += (await home.store.sweep(1000)).removedFiles
      const after = await checkStore(home.store, home.path)
      checked += after
      if (round % 20 === 19) log(`${round + 1} kills, ${checked} snapshots whole, ${swept} files swept`)
    }
    return { kills, checked, swept }
  } finally {
    home.remove()
    rmSync(scratch, { recursive: true, force: true })
    rmSync(bundle, { recursive: true, force: true })
  }
}

async function seedSnapshot(home: TestHome): Promise<SnapshotManifest> {
  const box = home.box()
  box.ram.set(new Random(1).bytes(500_000))
  const manifest = await box.snapshot('seed')
  box.close()
  return manifest
}

async function killOnce(child: string, args: readonly string[], random: Random): Promise<void> {
  const process_ = spawn(process.execPath, [child, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
  let said = ''
  process_.stderr.on('data', (chunk: Buffer) => {
    said += chunk.toString()
  })
  const ended = new Promise<NodeJS.Signals | null>(resolve => process_.once('exit', (_, signal) => resolve(signal)))
  // After so many pieces of work, and a moment of the next: a slow machine gets as far as a fast one.
  let wanted = 1 + random.below(8)
  const reached = new Promise<void>(resolve =>
    process_.stdout.on('data', (dots: Buffer) => {
      wanted -= dots.length
      if (wanted <= 0) resolve()
    }),
  )
  await Promise.race([reached, ended])
  await sleep(random.below(40))
  process_.kill('SIGKILL')
  if ((await ended) !== 'SIGKILL') throw new Error(`it ended by itself before it was killed: ${said}`)
}

/** Throws unless everything that is there is whole; how many snapshots there are. */
async function checkStore(store: SnapshotStore, home: string): Promise<number> {
  const damaged = store.damaged()
  if (damaged.length > 0) throw new Error(`a manifest cannot be read: ${damaged[0]!.error.message}`)
  const left = namesIn(store.folder.tmp)
  if (left.length > 0) throw new Error(`left over in tmp: ${left.join(', ')}`)
  const all = store.list()
  const names = all.flatMap(({ owner, name }) => (name === null ? [] : [`${owner}@${name}`]))
  if (new Set(names).size !== names.length) throw new Error(`a name is there twice: ${names.join(', ')}`)
  for (const manifest of all) {
    await store.check(manifest)
    await store.verify(manifest)
    const version = (manifest.settings as { version?: number }).version
    if (version === undefined) continue
    checkContents(store, manifest, version)
  }
  for (const id of KILL_BOXES) {
    const disk = join(home, 'boxes', id, 'disk.qcow2')
    if (!existsSync(disk)) continue
    const { corruptions } = checkDisk(disk)
    if (corruptions > 0) throw new Error(`the disk of box ${id} is corrupt`)
    openDisk(disk, { format: 'qcow2', readOnly: true, backingFolders: 'any' }).close()
  }
  return all.length
}

function checkContents(store: SnapshotStore, manifest: SnapshotManifest, version: number): void {
  const what = `snapshot ${manifest.id} (version ${version})`
  const disk = openDisk(store.diskPath(manifest), { format: 'qcow2', readOnly: true, backingFolders: 'any' })
  const bytes = readDisk(disk, 65536, 32_768)
  disk.close()
  if (Buffer.compare(bytes, pattern(version)) !== 0) throw new Error(`the disk of ${what} is not what it was`)
  if (!manifest.memory) return
  if (Buffer.from(store.openState(manifest)).toString() !== `state ${version}`) throw new Error(`the state of ${what}`)
  using image = store.openMemory(manifest)
  const page = new Uint8Array(4096)
  for (const number of pagesOf(version)) {
    image.read(number * 4096, page)
    if (Buffer.compare(page, pattern(version).subarray(0, 4096)) !== 0) throw new Error(`page ${number} of ${what}`)
  }
}

/** `npm run fuzz -- snapshot-kill [--seed N] [--count N]` */
export async function fuzz(args: readonly string[]): Promise<boolean> {
  const value = (name: string, otherwise: number): number => {
    const at = args.indexOf(name)
    return at < 0 ? otherwise : Number(args[at + 1])
  }
  const result = await killAgainAndAgain(value('--count', 200), value('--seed', 1), console.log)
  console.log(
    `${result.kills} kills: ${result.checked} snapshots found, all whole; ${result.swept} left-over files removed`,
  )
  return true
}
