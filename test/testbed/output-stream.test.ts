import { describe, expect, it } from 'vitest'
import { OutputStream } from './output-stream.ts'

function collect(chunks: readonly string[]): { text: string; statuses: number[] } {
  const stream = new OutputStream()
  const statuses: number[] = []
  let text = ''
  stream.begin(
    '0123456789abcdef',
    bytes => {
      text += bytes.toString('latin1')
    },
    status => statuses.push(status),
  )
  for (const chunk of chunks) stream.push(Buffer.from(chunk, 'latin1'))
  return { text, statuses }
}

const MARK = '\x1e0123456789abcdef 137\n'

describe('an output stream of the emulated host', () => {
  it('takes the end mark out, wherever the chunks are cut', () => {
    const whole = `one\ntwo${MARK}`
    for (let cut = 0; cut <= whole.length; cut++)
      expect(collect([whole.slice(0, cut), whole.slice(cut)])).toEqual({ text: 'one\ntwo', statuses: [137] })
    expect(collect([...whole])).toEqual({ text: 'one\ntwo', statuses: [137] })
  })

  it('passes on separators and marks that are not its own', () => {
    const foreign = '\x1e\x1eabc 1\n\x1efedcba9876543210 0\n'
    expect(collect([`${foreign}${MARK}`])).toEqual({ text: foreign, statuses: [137] })
    expect(collect([...foreign, ...MARK])).toEqual({ text: foreign, statuses: [137] })
  })
})
