/**
 * `vitrine completion SHELL`: a script for the shell, which asks `vitrine completion words -- ...` for what could come
 * next. So the script never grows old: commands, options, boxes and images are looked up when the key is pressed.
 */
import { Home } from '../box/home.ts'
import { list } from '../box/store.ts'
import { ImageCache } from '../image/cache.ts'
import { readRecords } from '../image/record.ts'
import { type Command, type ParsedArgs, UsageError } from './command.ts'
import { COMMANDS } from './commands.ts'

const SCRIPTS: Readonly<Record<string, string>> = {
  bash: `_vitrine() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(vitrine completion words -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _vitrine vitrine`,
  zsh: `#compdef vitrine
_vitrine() {
  local -a found
  found=("\${(@f)$(vitrine completion words -- "\${words[@]:1:$((CURRENT - 1))}" 2>/dev/null)}")
  compadd -a found || _files
}
compdef _vitrine vitrine`,
  fish: `complete -c vitrine -a '(vitrine completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'`,
}

/** Commands that begin with a word of their own. */
const SUBCOMMANDS: Readonly<Record<string, readonly string[]>> = {
  completion: Object.keys(SCRIPTS),
  disk: ['create', 'info', 'check', 'map', 'convert', 'commit', 'rebase', 'resize', 'snapshots'],
  kernel: ['list', 'fetch', 'build'],
  network: ['ls', 'create', 'rm'],
  port: ['ls', 'add', 'rm'],
  snapshot: ['create', 'ls', 'tree', 'rm', 'diff', 'verify'],
}

/** Commands whose arguments are boxes. */
const TAKES_BOXES = new Set([
  'exec',
  'start',
  'stop',
  'rm',
  'logs',
  'stats',
  'inspect',
  'cp',
  'net',
  'port',
  'snapshot',
  'rollback',
  'fork',
  'pause',
  'resume',
])

/** Commands whose arguments are images, or begin with one. */
const TAKES_IMAGES = new Set(['run', 'create', 'pull', 'rmi'])

export const completionCommand: Command = {
  name: 'completion',
  summary: 'Print a script that completes commands, options and names in your shell.',
  usage: 'bash|zsh|fish',
  options: {},
  examples: ['source <(vitrine completion bash)', 'vitrine completion fish > ~/.config/fish/completions/vitrine.fish'],
  run: async (args: ParsedArgs) => {
    const shell = args.required(0, 'the shell')
    if (shell === 'words') {
      process.stdout.write((await candidates(args.rest ?? [])).map(word => `${word}\n`).join(''))
      return 0
    }
    const script = Object.hasOwn(SCRIPTS, shell) ? SCRIPTS[shell] : undefined
    if (script === undefined)
      throw new UsageError(`there is no completion for '${shell}': ${Object.keys(SCRIPTS).join(', ')}`)
    process.stdout.write(`${script}\n`)
    return 0
  },
}

/** What could stand in place of the last word. */
export async function candidates(words: readonly string[]): Promise<string[]> {
  const current = words.at(-1) ?? ''
  const fitting = (all: readonly string[]): string[] => all.filter(word => word.startsWith(current))
  if (words.length <= 1) return fitting([...Object.keys(COMMANDS), 'help'])
  if (words[0] === 'help') return fitting(Object.keys(COMMANDS))
  const entry = Object.hasOwn(COMMANDS, words[0]!) ? COMMANDS[words[0]!] : undefined
  if (!entry) return []
  const command = await entry.load()
  if (current.startsWith('-')) return fitting([...Object.keys(command.options), 'help'].map(name => `--${name}`))
  const subcommands = SUBCOMMANDS[command.name]
  if (subcommands && words.length === 2) return fitting(subcommands)
  const home = new Home()
  if (TAKES_BOXES.has(command.name)) return fitting(list(home).map(box => box.name))
  if (TAKES_IMAGES.has(command.name))
    return fitting(readRecords(new ImageCache(home.path)).map(({ record }) => record.name))
  return []
}
