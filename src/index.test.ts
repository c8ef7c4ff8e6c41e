/** Everything that users import says what it is. */
import { existsSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'

const INDEX = new URL('./index.ts', import.meta.url)
const EXPORTS = /export (?:type )?\{([^}]*)\} from '([^']+)'/g

/** The file in which a name is declared: the one named, or the one that it is passed on from. */
function declaration(name: string, file: URL): { lines: string[]; at: number } | undefined {
  const text = readFileSync(file, 'utf8')
  const lines = text.split('\n')
  const declared = new RegExp(
    `^export (?:abstract )?(?:async )?(?:class|interface|type|function\\*?|const) ${name}\\b(?! from)`,
  )
  const at = lines.findIndex(line => declared.test(line))
  if (at >= 0) return { lines, at }
  const passedOn = [...text.matchAll(EXPORTS)].find(([, names]) => names!.includes(name))
  return passedOn && declaration(name, new URL(passedOn[2]!, file))
}

it('every export has a comment', () => {
  const missing: string[] = []
  let count = 0
  for (const [, names, from] of readFileSync(INDEX, 'utf8').matchAll(EXPORTS)) {
    const file = new URL(from!, INDEX)
    expect(existsSync(file), from).toBe(true)
    for (const item of names!.split(',').map(text => text.trim())) {
      if (item === '') continue
      const name = item.replace(/^type /, '').replace(/ as .*/, '')
      const found = declaration(name, file)
      expect(found, `${name} of ${from}`).toBeDefined()
      if (!found!.lines[found!.at - 1]?.trimEnd().endsWith('*/')) missing.push(`${name} (${from})`)
      count++
    }
  }
  expect(missing).toEqual([])
  expect(count).toBeGreaterThan(100)
})
