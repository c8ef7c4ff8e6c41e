/** What a command of the CLI is. Each is one file that exports one `Command`; main.ts lists them. */
import { nearest } from './nearest.ts'

export interface OptionSpec {
  readonly type: 'boolean' | 'string'
  /** A single letter. */
  readonly short?: string
  /** May be given more than once. */
  readonly multiple?: boolean
  /** For the help: what stands for the value, as in `--memory MIB`. */
  readonly value?: string
  readonly help: string
}

export interface Command {
  readonly name: string
  /** One line, for the list of commands. */
  readonly summary: string
  /** What follows the name: `[OPTIONS] BOX [COMMAND...]`. */
  readonly usage: string
  readonly options: Readonly<Record<string, OptionSpec>>
  /** After this many plain arguments the rest is left alone: it is a command for the guest, with options of its own. */
  readonly stopAfter?: number
  readonly examples: readonly string[]
  /** Does the work; the process's exit status. */
  run(args: ParsedArgs): Promise<number>
}

export class UsageError extends Error {
  readonly code = 'USAGE'
  constructor(message: string) {
    super(message)
    this.name = 'UsageError'
  }
}

/** A command's arguments, taken apart. */
export class ParsedArgs {
  readonly positionals: readonly string[]
  /** What stood after `--`; undefined when there was no `--`. */
  readonly rest: readonly string[] | undefined
  readonly #values: ReadonlyMap<string, readonly (string | boolean)[]>

  constructor(
    values: ReadonlyMap<string, readonly (string | boolean)[]>,
    positionals: readonly string[],
    rest?: readonly string[],
  ) {
    this.#values = values
    this.positionals = positionals
    this.rest = rest
  }

  flag(name: string): boolean {
    return this.#values.get(name)?.at(-1) === true
  }

  text(name: string): string | undefined {
    const value = this.#values.get(name)?.at(-1)
    return typeof value === 'string' ? value : undefined
  }

  all(name: string): string[] {
    return (this.#values.get(name) ?? []).filter(value => typeof value === 'string')
  }

  /** A whole number; undefined when the option is absent. */
  number(name: string): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    if (!/^\d+$/.test(text)) throw new UsageError(`--${name} takes a whole number, not '${text}'`)
    return Number(text)
  }

  /** Seconds, or with a unit: `500ms`, `30s`, `10m`, `2h`. In milliseconds. */
  duration(name: string): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const match = /^(\d+(?:\.\d+)?)(ms|s|m|h)?$/.exec(text)
    if (!match) throw new UsageError(`--${name} takes a duration such as 500ms, 30s, 10m or 2h, not '${text}'`)
    return Math.round(Number(match[1]) * { ms: 1, s: 1000, m: 60_000, h: 3_600_000 }[match[2] ?? 's']!)
  }

  /** A size in MiB: `512`, `512M`, `2G`. */
  mebibytes(name: string): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const match = /^(\d+)\s*(m|g)?i?b?$/i.exec(text)
    if (!match) throw new UsageError(`--${name} takes a size such as 512, 512M or 2G, not '${text}'`)
    return Number(match[1]) * (match[2]?.toLowerCase() === 'g' ? 1024 : 1)
  }

  /** Bytes a second: `5000`, `500K`, `2M`, `1G`; the units are of 1000, as network speeds have them. */
  rate(name: string): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const match = /^(\d+(?:\.\d+)?)(k|m|g)?$/i.exec(text)
    if (!match) throw new UsageError(`--${name} takes bytes a second, as in 500K or 2M, not '${text}'`)
    return Math.round(Number(match[1]) * { '': 1, k: 1e3, m: 1e6, g: 1e9 }[(match[2] ?? '').toLowerCase()]!)
  }

  /** The plain argument at `index`, which must be there. */
  required(index: number, what: string): string {
    const value = this.positionals[index]
    if (value === undefined) throw new UsageError(`${what} is missing`)
    return value
  }

  /** Complains about plain arguments that nobody asked for. */
  atMost(count: number): void {
    const extra = this.positionals[count]
    if (extra !== undefined) throw new UsageError(`'${extra}' is one argument too many`)
  }
}

export const JSON_OPTION: OptionSpec = { type: 'boolean', help: 'Print JSON for scripts.' }

/** What every command understands besides its own. */
const COMMON_OPTIONS: Readonly<Record<string, OptionSpec>> = {
  help: { type: 'boolean', short: 'h', help: 'Show this.' },
}

/** Takes a command's arguments apart: `--name`, `--name value`, `--name=value`, `--no-name`, `-n`, `-it`, `-nvalue`, `--`. */
export function parseCommandLine(command: Command, args: readonly string[]): ParsedArgs {
  const values = new Map<string, (string | boolean)[]>()
  const positionals: string[] = []
  const stopAfter = command.stopAfter ?? Number.POSITIVE_INFINITY
  const options = { ...COMMON_OPTIONS, ...command.options }
  const add = (name: string, spec: OptionSpec, value: string | boolean): void => {
    const list = values.get(name) ?? []
    if (list.length > 0 && !spec.multiple && spec.type === 'string') throw new UsageError(`--${name} is given twice`)
    list.push(value)
    values.set(name, list)
  }
  for (let at = 0; at < args.length; at++) {
    const arg = args[at]!
    if (arg === '--') return new ParsedArgs(values, positionals, args.slice(at + 1))
    if (arg.startsWith('--')) {
      const [name, inline] = splitOnce(arg.slice(2), '=')
      const negated = name.startsWith('no-') && options[name.slice(3)]?.type === 'boolean'
      const own = negated ? name.slice(3) : name
      const spec = Object.hasOwn(options, own) ? options[own] : undefined
      if (!spec) throw noOption(name, Object.keys(options))
      if (spec.type === 'boolean') {
        if (inline !== undefined) throw new UsageError(`--${name} takes no value`)
        add(own, spec, !negated)
      } else {
        const value = inline ?? args[++at]
        if (value === undefined) throw new UsageError(`--${name} needs a value`)
        add(name, spec, value)
      }
    } else if (arg.startsWith('-') && arg !== '-') {
      at = parseShort(options, args, at, add)
    } else {
      positionals.push(arg)
      if (positionals.length >= stopAfter) {
        const after = args.slice(at + 1)
        return new ParsedArgs(
          values,
          positionals,
          after[0] === '--' ? after.slice(1) : after.length > 0 ? after : undefined,
        )
      }
    }
  }
  return new ParsedArgs(values, positionals)
}

/** A cluster of short options; the index of the last argument that it used. */
function parseShort(
  options: Command['options'],
  args: readonly string[],
  at: number,
  add: (name: string, spec: OptionSpec, value: string | boolean) => void,
): number {
  const letters = args[at]!.slice(1)
  for (let i = 0; i < letters.length; i++) {
    const found = Object.entries(options).find(([, spec]) => spec.short === letters[i])
    if (!found) throw new UsageError(`there is no option -${letters[i]}`)
    const [name, spec] = found
    if (spec.type === 'boolean') {
      add(name, spec, true)
      continue
    }
    const inline = letters.slice(i + 1)
    const value = inline === '' ? args[at + 1] : inline
    if (value === undefined) throw new UsageError(`-${letters[i]} needs a value`)
    add(name, spec, value)
    return inline === '' ? at + 1 : at
  }
  return at
}

function noOption(name: string, known: readonly string[]): UsageError {
  const meant = nearest(name, known)
  return new UsageError(`there is no option --${name}${meant === undefined ? '' : `: did you mean --${meant}?`}`)
}

function splitOnce(text: string, separator: string): [string, string | undefined] {
  const at = text.indexOf(separator)
  return at < 0 ? [text, undefined] : [text.slice(0, at), text.slice(at + 1)]
}

/** The help of one command. */
export function commandHelp(command: Command): string {
  const lines = [`${command.summary}`, '', `Usage: vitrine ${command.name} ${command.usage}`.trimEnd()]
  const options = Object.entries(command.options)
  if (options.length > 0) {
    const heads = options.map(([name, spec]) => {
      const short = spec.short ? `-${spec.short}, ` : '    '
      return `  ${short}--${name}${spec.type === 'string' ? ` ${spec.value ?? 'VALUE'}` : ''}`
    })
    const width = Math.max(...heads.map(head => head.length)) + 2
    lines.push('', 'Options:', ...options.map(([, spec], i) => heads[i]!.padEnd(width) + spec.help))
  }
  if (command.examples.length > 0) lines.push('', 'Examples:', ...command.examples.map(example => `  ${example}`))
  return lines.join('\n')
}
