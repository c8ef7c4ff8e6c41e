/** The runtime of the CLI: the default home, with progress on the terminal. */
import { Runtime } from '../box/runtime.ts'
import { ProgressLine } from './output.ts'

export interface CliRuntime {
  readonly runtime: Runtime
  readonly progress: ProgressLine
}

export function cliRuntime(): CliRuntime {
  const progress = new ProgressLine()
  const runtime = new Runtime({ onProgress: event => progress.show(event) })
  return { runtime, progress }
}
