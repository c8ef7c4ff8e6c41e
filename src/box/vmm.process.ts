/**
 * The VMM process of one box. Started by `VmmProcess`, perhaps before there is a box; is told which one, and what to start, says when the box is
 * ready or why it is not, serves the control socket while the box runs, and ends when the box does.
 */
import { closeSync, openSync } from 'node:fs'
import { takeOutput } from '../host/fork.ts'
import { lockUp } from '../host/jail.ts'
import { BoxError } from './errors.ts'
import { BoxFolder } from './home.ts'
import type { LaunchPlan } from './vmm/launch.ts'
import { loadEarly, loadSoftEarly } from './vmm/load-early.ts'
import { OwnerChannel } from './vmm/owner-channel.ts'
import { serveBox } from './vmm/serve.ts'

async function becomeVmm(owner: OwnerChannel, folder: BoxFolder, planned: Promise<LaunchPlan>): Promise<void> {
  try {
    const log = openSync(folder.vmmLog, 'w', 0o600)
    takeOutput(log)
    closeSync(log)
  } catch (error) {
    // Nobody could read it anywhere else: on a full disk, for one.
    await owner.tell({ type: 'failed', code: 'HOME', message: `the VMM's log: ${(error as Error).message}` })
    process.exit(1)
  }
  process.title = `vmm.process ${folder.path} ${folder.id}`
  await serveBox(folder, owner, planned)
}

function main(): void {
  lockUp()
  const owner = new OwnerChannel()
  let hasBox = false
  const planned = new Promise<LaunchPlan>((resolve, reject) => {
    owner.listen(message => {
      if ('plan' in message) resolve(message.plan)
      else {
        hasBox = true
        void becomeVmm(owner, new BoxFolder(message.box.path, message.box.id), planned)
      }
    })
    owner.onGone(() => {
      // Nobody needs it after all.
      if (!hasBox) process.exit(0)
      reject(new BoxError('VMM_FAILED', 'the process that started it ended'))
    })
  })
  // Whoever waits for it looks at it.
  planned.catch(() => {})
  loadEarly()
  loadSoftEarly()
}

main()
