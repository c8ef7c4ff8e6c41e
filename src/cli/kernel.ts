/** `vitrine kernel`: which kernel is used, fetching it, and building the tuned one. */
import { existsSync, readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { kernelsFolder } from '../image/kernel/cache.ts'
import { findKernel, readRecord } from '../image/kernel/find.ts'
import { buildTunedKernel, tunedKernel } from '../image/kernel/tuned.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatBytes, ProgressLine, printJson, printTable } from './output.ts'

export const kernelCommand: Command = {
  name: 'kernel',
  summary: 'Show, fetch or build the kernel that machines boot.',
  usage: '[list | fetch | build] [OPTIONS]',
  options: {
    json: JSON_OPTION,
    jobs: { type: 'string', short: 'j', value: 'N', help: 'build: how many compilers at a time (one a CPU).' },
  },
  examples: [
    'vitrine kernel          # which there are, and which is used',
    'vitrine kernel fetch    # get Debian’s cloud kernel now rather than at first use',
    'vitrine kernel build    # build the tuned one, which boots faster; takes some minutes, can be interrupted',
  ],
  run: kernel,
}

function kernel(args: ParsedArgs): Promise<number> {
  args.atMost(1)
  const action = args.positionals[0] ?? 'list'
  if (action === 'list') return list(args)
  if (action === 'fetch') return fetchKernel(args)
  if (action === 'build') return build(args)
  throw new UsageError(`'${action}' is not something to do with kernels: list, fetch or build`)
}

async function list(args: ParsedArgs): Promise<number> {
  const folder = kernelsFolder()
  const names = existsSync(folder) ? readdirSync(folder).filter(name => /^(debian|tuned)-/.test(name)) : []
  const inUse =
    tunedKernel(folder) ??
    names
      .filter(name => name.startsWith('debian-'))
      .map(name => join(folder, name))
      .at(-1)
  const kernels = names.map(name => {
    const path = join(folder, name)
    const { source, release, version } = readRecord(path)
    return { source, release, version, bytes: statSync(join(path, 'vmlinux')).size, used: path === inUse, path }
  })
  if (args.flag('json')) printJson(kernels)
  else if (kernels.length === 0) {
    process.stdout.write("No kernel yet. It is fetched when a machine first needs one, or by 'vitrine kernel fetch'.\n")
  } else {
    printTable(
      ['SOURCE', 'RELEASE', 'PACKAGE', 'SIZE', 'USED'],
      kernels.map(k => [k.source, k.release, k.version, formatBytes(k.bytes), k.used ? 'yes' : 'no']),
    )
  }
  return 0
}

async function fetchKernel(args: ParsedArgs): Promise<number> {
  const progress = new ProgressLine()
  const found = await findKernel({ progress: message => progress.update(message) })
  progress.clear()
  if (args.flag('json')) printJson(found)
  else process.stdout.write(`${found.path}\n`)
  return 0
}

async function build(args: ParsedArgs): Promise<number> {
  const progress = new ProgressLine()
  const cancel = new AbortController()
  const interrupt = (): void => cancel.abort()
  process.on('SIGINT', interrupt)
  try {
    const path = await buildTunedKernel({
      jobs: args.number('jobs'),
      signal: cancel.signal,
      progress: message => progress.update(message),
    })
    progress.clear()
    if (args.flag('json')) printJson({ path, ...readRecord(path) })
    else process.stdout.write(`${join(path, 'vmlinux')}\n`)
    return 0
  } catch (error) {
    progress.clear()
    if (!cancel.signal.aborted) throw error
    process.stderr.write("Interrupted. 'vitrine kernel build' goes on where it stopped.\n")
    return 130
  } finally {
    process.off('SIGINT', interrupt)
  }
}
