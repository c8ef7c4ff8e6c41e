/**
 * The VMM process of one box. Started by `startVmm` with a launch plan; says over the IPC channel when the box is
 * ready or why it is not, serves the control socket while the box runs, and ends when the box does.
 */
import { closeSync, openSync, readFileSync, rmSync, writeSync } from 'node:fs'
import { resolve } from 'node:path'
import { ProcessLock } from '../host/process-lock.ts'
import { ControlServer } from './control.ts'
import { BoxError } from './errors.ts'
import { BoxFolder, Home } from './home.ts'
import { discard } from './store.ts'
import type { LaunchPlan, VmmMessage } from './vmm/launch.ts'
import { Vmm } from './vmm/vmm.ts'

/** Somebody who only looks whether the box runs holds the lock for a moment. */
const LOCK_WAIT_MS = 1000

function tell(message: VmmMessage): Promise<void> {
  return new Promise(resolve => {
    if (process.connected) process.send!(message, undefined, undefined, () => resolve())
    else resolve()
  })
}

async function main(): Promise<void> {
  const plan = JSON.parse(readFileSync(process.argv[2]!, 'utf8')) as LaunchPlan
  const folder = new BoxFolder(plan.folder, plan.id)
  const lock = await ProcessLock.acquire(folder.vmmLock, 'exclusive', LOCK_WAIT_MS)
  if (!lock) throw new BoxError('WRONG_STATE', 'the box is running already')
  const vmm = await Vmm.start(plan)
  const { config } = vmm.record
  const stopped = { reason: 'stopped', message: 'it was stopped', exitCode: null } as const
  let control: ControlServer | undefined
  const ownerGone = (): void => {
    void vmm.stop({ reason: 'owner-gone', message: 'the process that started it ended', exitCode: null })
  }
  if (!config.detach) process.on('disconnect', ownerGone)
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => void vmm.stop(stopped))
  try {
    control = await ControlServer.listen(folder.controlSocket, {
      status: () => ({ pid: process.pid, accel: plan.accel, stages: vmm.stages }),
      stop: params => vmm.stop(stopped, (params as { graceMs?: number } | null)?.graceMs),
      metrics: () => vmm.metrics(),
      ports: () => vmm.openPorts(),
    })
    await vmm.becomeReady()
    const output = openSync(folder.outputLog, 'a', 0o600)
    vmm.ended.finally(() => closeSync(output)).catch(() => {})
    await tell({ type: 'ready', stages: vmm.stages })
    vmm.runCommand(chunk => writeSync(output, chunk))
    if (config.detach && process.connected) process.disconnect()
  } catch (error) {
    void vmm.stop({ reason: 'vmm-failed', message: (error as Error).message, exitCode: null }, 0)
    await fail(error as Error)
  }
  const exit = await vmm.ended
  control?.broadcast('exit', exit)
  await control?.close()
  for (const path of [folder.controlSocket, folder.vsockSocket]) rmSync(path, { force: true })
  if (config.autoRemove) discard(new Home(resolve(folder.path, '../..')), folder, vmm.record.name)
  lock.release()
  process.exit(0)
}

async function fail(error: Error): Promise<void> {
  await tell({ type: 'failed', code: (error as BoxError).code ?? 'VMM_FAILED', message: error.message })
}

main().catch(async (error: Error) => {
  process.stderr.write(`${error.stack}\n`)
  await fail(error)
  process.exit(1)
})
