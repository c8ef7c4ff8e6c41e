/**
 * What a box's next start goes on from: a snapshot, instead of a boot. Written when the box's disk is a fresh overlay on
 * that snapshot's disk, and removed before the guest runs again: memory and disk must be of one moment, so what a guest
 * has written to makes the file untrue.
 */
import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { removeFile } from '../host/remove.ts'
import type { BoxFolder } from './home.ts'

/** A snapshot in the store of the home. */
export interface SnapshotRef {
  readonly owner: string
  readonly id: string
}

export interface Pending {
  readonly snapshot: SnapshotRef
  /** 'start': a box that has never run; 'pause': one that was running. */
  readonly why: 'start' | 'pause'
}

export function readPending(folder: BoxFolder): Pending | undefined {
  try {
    const value = JSON.parse(readFileSync(folder.pending, 'utf8')) as Partial<Pending>
    const { owner, id } = value.snapshot ?? {}
    if (typeof owner !== 'string' || typeof id !== 'string') return undefined
    return { snapshot: { owner, id }, why: value.why === 'pause' ? 'pause' : 'start' }
  } catch {
    return undefined
  }
}

export function writePending(folder: BoxFolder, pending: Pending): void {
  const temporary = `${folder.pending}.${process.pid}`
  writeFileSync(temporary, JSON.stringify(pending), { flush: true } as object)
  renameSync(temporary, folder.pending)
}

export const removePending = (folder: BoxFolder): void => removeFile(folder.pending)

/** Whether the running machine of a box holds still. */
export const isFrozen = (folder: BoxFolder): boolean => existsSync(folder.frozen)
