/** What a VMM process does from the moment that it knows its box, however it came to be: serves it, and ends with it. */
import { closeSync, openSync, writeSync } from 'node:fs'
import { resolve } from 'node:path'
import { CODE_USE, keepCode } from '../../host/kept-code.ts'
import { ProcessLock } from '../../host/process-lock.ts'
import { removeFile } from '../../host/remove.ts'
import { SnapshotStore } from '../../snapshot/store.ts'
import { ControlServer } from '../control.ts'
import { BoxError } from '../errors.ts'
import { type BoxFolder, Home } from '../home.ts'
import { readRecord } from '../record.ts'
import { discard } from '../store.ts'
import type { LaunchPlan, SnapshotRequest, VmmMessage } from './launch.ts'
import type { MappedMachine } from './restored-memory.ts'
import { Vmm } from './vmm.ts'

/** Somebody who only looks whether the box runs holds the lock for a moment. */
const LOCK_WAIT_MS = 1000

/** A box that starts as most do has used by then what others will use; one that ends before keeps its code at its end. */
const KEEP_CODE_MS = 3000

/** The process that started this one. */
export interface VmmOwner {
  /** Resolves when it was sent, or nobody is there. */
  tell(message: VmmMessage): Promise<void>
  /** Whether it lives still. */
  readonly isThere: boolean
  /** Hears once that the owner has ended. */
  onGone(listener: () => void): void
  /** The box lives on without it. */
  leave(): void
}

/** Serves the box until it ends, then ends the process. `mapped` is what the plan's snapshot was opened as, if it was. */
export async function serveBox(
  folder: BoxFolder,
  owner: VmmOwner,
  planned: Promise<LaunchPlan>,
  mapped?: MappedMachine,
): Promise<never> {
  // Both are a log in the home: a full disk must not end the box for want of room to complain.
  process.stderr.on('error', () => {})
  process.stdout.on('error', () => {})
  try {
    await serve(folder, owner, planned, mapped)
  } catch (error) {
    process.stderr.write(`${(error as Error).stack}\n`)
    await fail(owner, error as Error)
    process.exit(1)
  }
  process.exit(0)
}

async function serve(
  folder: BoxFolder,
  owner: VmmOwner,
  planned: Promise<LaunchPlan>,
  mapped: MappedMachine | undefined,
): Promise<void> {
  const record = readRecord(folder)
  const plan = await planned
  const lock = await ProcessLock.acquire(folder.vmmLock, 'exclusive', LOCK_WAIT_MS)
  if (!lock) throw new BoxError('WRONG_STATE', 'the box is running already')
  if (!owner.isThere) {
    // It was killed before the box had a VMM: somebody else may start one any moment, and would find us in the way.
    lock.release()
    throw new BoxError('VMM_FAILED', 'the process that started it ended')
  }
  const vmm = await Vmm.start(folder, record, plan, mapped)
  if (plan.announce) void owner.tell({ type: 'running' })
  const { config } = record
  const detach = plan.detach ?? config.detach
  const stopped = { reason: 'stopped', message: 'it was stopped', exitCode: null } as const
  let control: ControlServer | undefined
  let isReady = false
  // One that was to go on from a snapshot and cannot is not lost; nor is one that is ended to be put back to a snapshot.
  let isKept = plan.restore !== undefined && plan.restore.owner !== 'template'
  if (!detach) {
    owner.onGone(() => {
      void vmm.stop({ reason: 'owner-gone', message: 'the process that started it ended', exitCode: null })
    })
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => void vmm.stop(stopped))
  try {
    control = await ControlServer.listen(folder.controlSocket, {
      status: () => ({ pid: process.pid, accel: plan.accel, stages: vmm.stages, isReady, isEnding: vmm.isEnding }),
      stop: params => {
        const asked = params as { graceMs?: number; keep?: boolean } | null
        isKept = asked?.keep === true
        return vmm.stop(stopped, asked?.graceMs)
      },
      metrics: () => vmm.metrics(),
      network: params => vmm.askNetwork(params),
      snapshot: params => vmm.snapshot(params as SnapshotRequest),
      pause: params => ((params as { release?: boolean } | null)?.release ? vmm.release() : vmm.pause()),
      resume: () => vmm.resume(),
    })
    const log = (stream: 'console' | 'output', data: Uint8Array): void =>
      control?.broadcastLossy('log', { stream, text: Buffer.from(data).toString() })
    vmm.onConsole = data => log('console', data)
    await vmm.becomeReady(plan.silenceMs)
    isKept = false
    if (plan.template !== undefined) await vmm.leaveTemplate(plan.template)
    // Not before: what is done in the guest would be in the template.
    isReady = true
    const output = openSync(folder.outputLog, 'a', 0o600)
    vmm.ended.finally(() => closeSync(output)).catch(() => {})
    await owner.tell({ type: 'ready', stages: vmm.stages })
    // A machine that goes on has its command running.
    if (!plan.restore || plan.restore.owner === 'template') {
      vmm.runCommand(chunk => {
        keep(output, chunk)
        log('output', chunk)
      })
    }
    if (detach) owner.leave()
  } catch (error) {
    void vmm.stop({ reason: 'vmm-failed', message: (error as Error).message, exitCode: null }, 0)
    await fail(owner, error as Error)
  }
  const keepOurCode = (): void => {
    if (plan.restore) keepCode(plan.restore.owner === 'template' ? CODE_USE.usual : CODE_USE.snapshot)
  }
  setTimeout(keepOurCode, KEEP_CODE_MS).unref()
  const exit = await vmm.ended
  control?.broadcast('exit', exit)
  await control?.close()
  for (const path of [folder.controlSocket, folder.vsockSocket, folder.netSocket]) removeFile(path)
  const isRemoved = config.autoRemove && !isKept && exit.reason !== 'paused'
  const home = new Home(resolve(folder.path, '../..'))
  if (isRemoved) discard(home, folder, vmm.record.name)
  // Before anybody hears that it has ended, and perhaps removes the home.
  keepOurCode()
  lock.release()
  // Nobody waits for this, and the next cleaning up does it if it fails.
  if (isRemoved) await new SnapshotStore(home.path).removeOwner(record.id).catch(() => {})
}

/** Output that a full disk has no room for is lost; the command goes on. */
function keep(fd: number, chunk: Buffer): void {
  try {
    for (let at = 0; at < chunk.length; ) at += writeSync(fd, chunk, at)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOSPC') throw error
  }
}

async function fail(owner: VmmOwner, error: Error): Promise<void> {
  await owner.tell({ type: 'failed', code: (error as BoxError).code ?? 'VMM_FAILED', message: error.message })
}
