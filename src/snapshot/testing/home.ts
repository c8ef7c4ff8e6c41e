/** A home with boxes that are only files: disks on an image, memory that is random bytes. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createDisk } from '../../qcow2/create.ts'
import { openDisk } from '../../qcow2/open.ts'
import { readDisk, writeDisk } from '../../qcow2/testing/disk-io.ts'
import { describeCpu } from '../cpu-needs.ts'
import type { SnapshotDraft, SnapshotFacts } from '../draft.ts'
import { newId } from '../draft.ts'
import type { SnapshotManifest } from '../manifest.ts'
import type { MemoryImage } from '../memory-image.ts'
import { SnapshotStore } from '../store.ts'

export const MIB = 2 ** 20
export const RAM = 4 * MIB
export const DISK = 16 * MIB

export class TestHome {
  readonly path = mkdtempSync(join(tmpdir(), 'vitrine-snapshots-'))
  readonly store = new SnapshotStore(this.path)
  readonly base = join(this.path, 'images', 'disks', 'base.ext4')

  constructor() {
    mkdirSync(join(this.path, 'images', 'disks'), { recursive: true })
    this.store.folder.prepare()
    createDisk(this.base, { format: 'raw', size: 8 * MIB })
  }

  remove(): void {
    rmSync(this.path, { recursive: true, force: true })
  }

  box(): TestBox {
    return new TestBox(this, newId())
  }
}

export class TestBox {
  readonly home: TestHome
  readonly id: string
  readonly folder: string
  readonly disk: string
  /** What the guest's memory would be. */
  readonly ram = new Uint8Array(RAM)
  /** The snapshot that the box went on from. */
  parent: SnapshotManifest | undefined
  image: MemoryImage | undefined

  constructor(home: TestHome, id: string) {
    this.home = home
    this.id = id
    this.folder = join(home.path, 'boxes', id)
    this.disk = join(this.folder, 'disk.qcow2')
    mkdirSync(this.folder, { recursive: true })
    createDisk(this.disk, { format: 'qcow2', size: DISK, backing: { file: home.base, format: 'raw' } })
  }

  get #folders(): string[] {
    return [this.folder, this.home.store.layersFolder, join(this.home.path, 'images', 'disks')]
  }

  writeDisk(offset: number, bytes: Uint8Array): void {
    const image = openDisk(this.disk, { format: 'qcow2', backingFolders: this.#folders })
    writeDisk(image, offset, bytes)
    image.close()
  }

  readDisk(offset: number, length: number, path = this.disk): Uint8Array {
    const image = openDisk(path, { format: 'qcow2', readOnly: true, backingFolders: this.#folders })
    try {
      return readDisk(image, offset, length)
    } finally {
      image.close()
    }
  }

  facts(memory: boolean): SnapshotFacts {
    const shape = { accelerator: 'soft', cpus: 1, memoryMib: RAM / MIB, kernel: 'k', initrd: 'i' }
    return {
      state: memory ? Buffer.from('the state of the machine') : null,
      machine: memory ? shape : null,
      cpu: memory ? describeCpu('VitrineTests', ['sse', 'sse2']) : null,
      base: this.home.base,
      image: 'base',
      imageId: 'sha256:0',
      settings: { note: 'settings' },
    }
  }

  begin(name: string | null): Promise<SnapshotDraft> {
    return this.home.store.begin({
      owner: this.id,
      box: { id: this.id, name: 'test' },
      name,
      kind: 'snapshot',
      parent: this.parent?.id ?? null,
    })
  }

  /** A snapshot as a VMM takes it: all memory the first time, then the pages that are given. */
  async snapshot(name: string | null, pages?: readonly number[]): Promise<SnapshotManifest> {
    const draft = await this.begin(name)
    try {
      const writer = draft.memory({ size: RAM, ...(pages && this.image ? { parent: this.image } : {}) })
      if (pages && this.image) {
        for (const page of pages) writer.write(page * 4096, this.ram.subarray(page * 4096, (page + 1) * 4096))
      } else writer.write(0, this.ram)
      const image = writer.seal()
      draft.freezeDisk(this.disk)
      const manifest = await draft.commit(this.facts(true))
      this.image?.close()
      this.image = image
      this.parent = manifest
      return manifest
    } finally {
      draft.abort()
    }
  }

  async diskSnapshot(name: string | null): Promise<SnapshotManifest> {
    const draft = await this.begin(name)
    try {
      draft.freezeDisk(this.disk)
      this.parent = await draft.commit(this.facts(false))
      return this.parent
    } finally {
      draft.abort()
    }
  }

  close(): void {
    this.image?.close()
    this.image = undefined
  }
}

/** What a plan shows, by doing what it says. */
export function applyPlan(image: MemoryImage, read: (fd: number, target: Uint8Array, at: number) => void): Uint8Array {
  const ram = new Uint8Array(image.size)
  for (const { offset, length, fd } of image.plan()) read(fd, ram.subarray(offset, offset + length), offset)
  return ram
}
