import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import * as protocol from './protocol.ts'

/** Every `NAME = number` and `#define NAME number` of the guest's header. */
function headerConstants(): Map<string, number> {
  const text = readFileSync(new URL('../../../guest/init/protocol.h', import.meta.url), 'utf8')
  const constants = new Map<string, number>()
  for (const [, name, value] of text.matchAll(/\b([A-Z][A-Z0-9_]+) = (\d+)/g)) constants.set(name!, Number(value))
  for (const [, name, value] of text.matchAll(/#define ([A-Z_]+) \(?(\d+(?: \* \d+)?)\)?/g)) {
    constants.set(
      name!,
      value!.split('*').reduce((product, factor) => product * Number(factor), 1),
    )
  }
  return constants
}

describe('protocol.ts and protocol.h', () => {
  it('agree on every constant', () => {
    const c = headerConstants()
    const ours = new Map<string, number>()
    const add = (prefix: string, group: Record<string, number>) => {
      for (const [name, value] of Object.entries(group)) ours.set(`${prefix}${name}`, value)
    }
    add('FRAME_', protocol.Frame)
    add('STREAM_', protocol.Stream)
    add('EXEC_', protocol.ExecFlag)
    add('WRITE_', protocol.WriteFlag)
    add('EXIT_', protocol.ExitKind)
    add('EXIT_FLAG_', protocol.ExitFlag)
    add('EVENT_', protocol.EventKind)
    ours.set('FLAG_EOF', protocol.FLAG_EOF)
    ours.set('PROTOCOL_VERSION', protocol.PROTOCOL_VERSION)
    ours.set('AGENT_PORT', protocol.AGENT_PORT)
    ours.set('FRAME_HEADER_SIZE', protocol.FRAME_HEADER_SIZE)
    ours.set('FRAME_PAYLOAD_MAX', protocol.FRAME_PAYLOAD_MAX)
    ours.set('WINDOW_INITIAL', protocol.WINDOW_INITIAL)
    expect(Object.fromEntries(ours)).toEqual(Object.fromEntries(c))
  })
})
