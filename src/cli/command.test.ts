import { describe, expect, it } from 'vitest'
import { type Command, commandHelp, parseCommandLine } from './command.ts'

const command: Command = {
  name: 'run',
  summary: 'Runs.',
  usage: '[OPTIONS] [IMAGE] [COMMAND...]',
  options: {
    interactive: { type: 'boolean', short: 'i', help: 'Keep stdin open.' },
    tty: { type: 'boolean', short: 't', help: 'A terminal.' },
    env: { type: 'string', short: 'e', multiple: true, value: 'NAME=VALUE', help: 'A variable.' },
    memory: { type: 'string', value: 'MIB', help: 'Memory.' },
    timeout: { type: 'string', help: 'Time.' },
  },
  stopAfter: 1,
  examples: ['vitrine run -- true'],
  run: async () => 0,
}
const parse = (...args: string[]) => parseCommandLine(command, args)

describe('the command line', () => {
  it('knows long, short, clustered, inline and repeated options', () => {
    const args = parse('-it', '-e', 'A=1', '-eB=2', '--env=C=3', '--memory', '512', 'image')
    expect([args.flag('interactive'), args.flag('tty')]).toEqual([true, true])
    expect(args.all('env')).toEqual(['A=1', 'B=2', 'C=3'])
    expect(args.number('memory')).toBe(512)
    expect(args.positionals).toEqual(['image'])
    expect(args.rest).toBeUndefined()
    expect(parse('--tty', '--no-tty').flag('tty')).toBe(false)
  })

  it("leaves the guest's command alone", () => {
    expect(parse('image', 'ls', '-la', '--', 'x').rest).toEqual(['ls', '-la', '--', 'x'])
    expect(parse('--', 'ls', '-la')).toMatchObject({ positionals: [], rest: ['ls', '-la'] })
    expect(parse('image', '--', 'ls').rest).toEqual(['ls'])
  })

  it('reads sizes and durations', () => {
    expect(parse('--memory', '2G').mebibytes('memory')).toBe(2048)
    expect(parse('--memory', '512MiB').mebibytes('memory')).toBe(512)
    expect(parse('--timeout', '1.5m').duration('timeout')).toBe(90_000)
    expect(parse('--timeout', '250ms').duration('timeout')).toBe(250)
    expect(() => parse('--memory', 'much').mebibytes('memory')).toThrow(/takes a size/)
    expect(() => parse('--timeout', 'soon').duration('timeout')).toThrow(/takes a duration/)
  })

  it('says what is wrong', () => {
    expect(() => parse('--absent')).toThrow('there is no option --absent')
    expect(() => parse('-x')).toThrow('there is no option -x')
    expect(() => parse('--memory')).toThrow('--memory needs a value')
    expect(() => parse('--tty=yes')).toThrow('--tty takes no value')
    expect(() => parse('--memory', '1', '--memory', '2')).toThrow('given twice')
    expect(() => parse().required(0, 'the image')).toThrow('the image is missing')
  })

  it('explains itself', () => {
    expect(commandHelp(command)).toContain('  -e, --env NAME=VALUE  A variable.')
  })
})
