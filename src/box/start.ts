/** Starting a box's VMM process and waiting until the box is ready. */
import { readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { onLines } from '../host/lines.ts'
import { BoxError, type BoxErrorCode } from './errors.ts'
import type { BoxFolder } from './home.ts'
import type { BootStages, LaunchPlan, VmmMessage } from './vmm/launch.ts'
import { takeVmmProcess, type VmmProcess } from './vmm-process.ts'

/** How long after a process has ended its last words may come. */
export const EXIT_MS = 50

/** A kernel; a template: a snapshot of a guest like it that had just booted; a snapshot of a box. */
export type StartedFrom = 'kernel' | 'template' | 'snapshot'

export const startedFrom = ({ restore }: LaunchPlan): StartedFrom =>
  restore ? (restore.owner === 'template' ? 'template' : 'snapshot') : 'kernel'

/** How a box is to be started. */
export interface StartOptions {
  /** This run outlives the process, whatever the box was made for. */
  readonly detach?: boolean
  /** A command that follows at once starts sooner: the handle is connected to the guest then, which counts as use. */
  readonly connect?: boolean
}

export const planFor = (plan: LaunchPlan, { detach, connect }: StartOptions): LaunchPlan => ({
  ...plan,
  ...(detach === undefined ? {} : { detach }),
  // A guest that boots has nobody to connect to yet.
  ...(connect && plan.restore ? { announce: true } : {}),
})

/** What a person is told while it starts. */
export function describeStart({ accel, restore, template }: LaunchPlan): string {
  if (restore) return restore.owner === 'template' ? 'Starting the box' : 'Waking the box up'
  const where = accel === 'soft' ? 'Booting on the software CPU' : 'Booting'
  return template === undefined ? where : `${where}; the next box like this one starts at once`
}

/**
 * Starts the VMM and resolves when the guest is ready. It starts while the plan is made, and is told when there is one. Unless the box is detached it ends
 * when this process does. `onRunning` hears that the machine runs, if the plan asks for it.
 */
export async function startVmm(
  folder: BoxFolder,
  plan: Promise<LaunchPlan>,
  onRunning: () => void = () => {},
): Promise<BootStages> {
  const vmm = takeVmmProcess(resolve(folder.path, '../..'))
  try {
    const ready = becomesReady(vmm, folder, onRunning)
    ready.catch(() => {}) // looked at below
    vmm.assign(folder)
    vmm.launch(await plan)
    const stages = await ready
    vmm.unref()
    return stages
  } catch (error) {
    await vmm.kill()
    throw error
  }
}

function becomesReady({ child, channel }: VmmProcess, folder: BoxFolder, onRunning: () => void): Promise<BootStages> {
  return new Promise((resolve, reject) => {
    const done = (): void => {
      endLines()
      channel.resume()
      child.off('exit', onExit)
      child.off('error', onError)
    }
    const onMessage = (message: VmmMessage): void => {
      if (message.type === 'running') {
        onRunning()
        return
      }
      done()
      if (message.type === 'ready') resolve(message.stages)
      else reject(new BoxError(message.code as BoxErrorCode, message.message))
    }
    const onExit = (code: number | null, signal: string | null): void => {
      // What it said before is heard first.
      setTimeout(() => {
        done()
        reject(
          new BoxError(
            'VMM_FAILED',
            `the VMM process ended (${signal ?? `exit status ${code}`}) before the box was ready: ${lastWords(folder)}`,
          ),
        )
      }, EXIT_MS)
    }
    const onError = (error: Error): void => {
      done()
      reject(new BoxError('VMM_FAILED', `the VMM process cannot be started: ${error.message}`))
    }
    const endLines = onLines(channel, line => onMessage(JSON.parse(line) as VmmMessage))
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
