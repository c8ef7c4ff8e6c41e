/** Starting a box's VMM process and waiting until the box is ready. */
import { type ChildProcess, spawn } from 'node:child_process'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { assetPath } from '../host/assets.ts'
import { BoxError, type BoxErrorCode } from './errors.ts'
import type { BoxFolder } from './home.ts'
import type { BootStages, LaunchPlan, VmmMessage } from './vmm/launch.ts'
import { VMM_NODE_OPTIONS } from './vmm/node-options.ts'

export interface StartedVmm {
  readonly process: ChildProcess
  readonly stages: BootStages
}

/** What a person is told while it starts. */
export function describeStart({ accel, restore, template }: LaunchPlan): string {
  if (restore) return restore.owner === 'template' ? 'Starting the box' : 'Waking the box up'
  const where = accel === 'soft' ? 'Booting on the software CPU' : 'Booting'
  return template === undefined ? where : `${where}; the next box like this one starts at once`
}

/**
 * Spawns the VMM and resolves when the guest is ready. It starts while the plan is made, and is told when there is one. The process is in a
 * session of its own, so that a Ctrl-C at the terminal is ours to interpret; unless the box is detached it ends when this process
 * does, because its IPC channel then closes.
 */
export async function startVmm(folder: BoxFolder, plan: Promise<LaunchPlan>): Promise<StartedVmm> {
  const log = openSync(folder.vmmLog, 'w', 0o600)
  let child: ChildProcess
  try {
    const args = [...VMM_NODE_OPTIONS, assetPath('vmm.process.cjs'), folder.path, folder.id]
    child = spawn(process.execPath, args, {
      stdio: ['ignore', log, log, 'ipc'],
      detached: true,
      cwd: '/',
      env: ownEnvironment(),
    })
  } finally {
    closeSync(log)
  }
  try {
    const ready = becomesReady(child, folder)
    ready.catch(() => {}) // looked at below
    const made = await plan
    if (child.connected) child.send(made)
    const stages = await ready
    child.unref()
    child.channel?.unref()
    return { process: child, stages }
  } catch (error) {
    const ended = new Promise(resolve => child.once('exit', resolve))
    if (child.kill('SIGKILL')) await ended
    throw error
  }
}

/** What the VMM needs of ours; secrets that stand in an environment are none of its business. */
export function ownEnvironment(): Record<string, string> {
  const kept = /^(PATH|HOME|LANG|LC_ALL|TZ|TMPDIR|NODE_V8_COVERAGE|VITRINE_\w+)$/
  return Object.fromEntries(Object.entries(process.env).filter(([name]) => kept.test(name))) as Record<string, string>
}

function becomesReady(child: ChildProcess, folder: BoxFolder): Promise<BootStages> {
  return new Promise((resolve, reject) => {
    const done = (): void => {
      child.off('message', onMessage)
      child.off('exit', onExit)
      child.off('error', onError)
    }
    const onMessage = (message: VmmMessage): void => {
      done()
      if (message.type === 'ready') resolve(message.stages)
      else reject(new BoxError(message.code as BoxErrorCode, message.message))
    }
    const onExit = (code: number | null, signal: string | null): void => {
      done()
      reject(
        new BoxError(
          'VMM_FAILED',
          `the VMM process ended (${signal ?? `exit status ${code}`}) before the box was ready: ${lastWords(folder)}`,
        ),
      )
    }
    const onError = (error: Error): void => {
      done()
      reject(new BoxError('VMM_FAILED', `the VMM process cannot be started: ${error.message}`))
    }
    child.on('message', onMessage)
    child.on('exit', onExit)
    child.on('error', onError)
  })
}

/** The last line of what the VMM printed. */
export function lastWords(folder: BoxFolder): string {
  try {
    const lines = readFileSync(folder.vmmLog, 'utf8').trim().split('\n')
    return lines.find(line => /Error/.test(line)) ?? lines.at(-1) ?? `see ${folder.vmmLog}`
  } catch {
    return 'it left no message'
  }
}
