import { PassThrough } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { onLines } from './lines.ts'

it('gives lines however they come, and no unfinished one', async () => {
  const stream = new PassThrough()
  const heard: string[] = []
  onLines(stream, line => heard.push(line))
  const text = Buffer.from('{"a":1}\n\nzwölf €\nrest')
  for (const byte of text) stream.write(Buffer.of(byte))
  await setImmediate()
  expect(heard).toEqual(['{"a":1}', '', 'zwölf €'])
  stream.write(' of it\nnext\n')
  await setImmediate()
  expect(heard.slice(3)).toEqual(['rest of it', 'next'])
})

it('says nothing more once it was ended, not even of what came along', async () => {
  const stream = new PassThrough()
  const heard: string[] = []
  const end = onLines(stream, line => {
    heard.push(line)
    end()
  })
  stream.write('one\ntwo\n')
  await setImmediate()
  stream.write('three\n')
  await setImmediate()
  expect(heard).toEqual(['one'])
})
