/** Kernel configurations: whether what was asked for is what came out. */

type Settings = Map<string, string>

/** `CONFIG_X=y`, and `# CONFIG_X is not set` as 'n'. */
export function parseConfig(text: string): Settings {
  const settings: Settings = new Map()
  for (const line of text.split('\n')) {
    const set = /^(CONFIG_[A-Z0-9_a-z]+)=(.*)$/.exec(line.trim())
    if (set) settings.set(set[1]!, set[2]!)
    const unset = /^# (CONFIG_[A-Z0-9_a-z]+) is not set$/.exec(line.trim())
    if (unset) settings.set(unset[1]!, 'n')
  }
  return settings
}

/** The settings of `wanted` that `actual` does not have: options that do not exist or lack what they depend on. */
export function checkConfig(wanted: string, actual: string): string[] {
  const have = parseConfig(actual)
  const refused: string[] = []
  for (const [name, value] of parseConfig(wanted))
    if ((have.get(name) ?? 'n') !== value) refused.push(`${name}=${value}`)
  return refused
}
