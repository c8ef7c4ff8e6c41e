/** Lines of text from a stream. Node's `readline` does the same, but is made for people who type, and takes a millisecond to set up. */
import type { Readable } from 'node:stream'

/** Calls `hear` with every line, without its end; what follows the last end of a line is not one. Returns what ends it. */
export function onLines(stream: Readable, hear: (line: string) => void): () => void {
  let rest = ''
  let isOver = false
  const onData = (chunk: string): void => {
    const lines = (rest + chunk).split('\n')
    rest = lines.pop()!
    for (const line of lines) {
      if (isOver) return
      hear(line)
    }
  }
  stream.setEncoding('utf8')
  stream.on('data', onData)
  return () => {
    isOver = true
    stream.off('data', onData)
  }
}
