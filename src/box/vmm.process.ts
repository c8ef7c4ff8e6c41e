/**
 * The VMM process of one box. Started by `startVmm` with a launch plan; says over the IPC channel when the box is
 * ready or why it is not, serves the control socket while the box runs, and ends when the box does.
 */
import { lockUp } from '../host/jail.ts'
import { BoxError } from './errors.ts'
import { BoxFolder } from './home.ts'
import type { LaunchPlan, VmmMessage } from './vmm/launch.ts'
import { serveBox, type VmmOwner } from './vmm/serve.ts'

/** Whoever spawned this process, over Node's own channel. */
const owner: VmmOwner = {
  tell: (message: VmmMessage) =>
    new Promise(resolve => {
      if (process.connected) process.send!(message, undefined, undefined, () => resolve())
      else resolve()
    }),
  onGone: listener => {
    if (process.connected) process.once('disconnect', listener)
    else listener()
  },
  leave: () => {
    if (process.connected) process.disconnect()
  },
}

const planned = new Promise<LaunchPlan>((resolve, reject) => {
  process.once('message', resolve)
  process.once('disconnect', () => reject(new BoxError('VMM_FAILED', 'the process that started it ended')))
})
// Whoever waits for it looks at it.
planned.catch(() => {})

lockUp()
void serveBox(new BoxFolder(process.argv[2]!, process.argv[3]!), owner, planned)
