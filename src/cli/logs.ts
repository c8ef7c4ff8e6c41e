/** `vitrine logs`: what a box's command wrote, or its console. */
import { closeSync, createReadStream, existsSync, openSync, readSync, statSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Box } from '../box/box.ts'
import { cliRuntime } from './box-runtime.ts'
import type { Command, ParsedArgs } from './command.ts'

export const logsCommand: Command = {
  name: 'logs',
  summary: "Show the output of a box's command, or its console.",
  usage: '[OPTIONS] BOX',
  options: {
    console: { type: 'boolean', short: 'c', help: "The guest's console instead: the kernel's messages." },
    follow: { type: 'boolean', short: 'f', help: 'Wait for more until the box stops.' },
    tail: { type: 'string', short: 'n', value: 'LINES', help: 'Only the last lines.' },
  },
  examples: ['vitrine logs web', 'vitrine logs --follow --tail 20 web', 'vitrine logs --console web'],
  run,
}

const FOLLOW_MS = 200
const CHUNK_BYTES = 64 * 1024
const NEWLINE = 0x0a

async function run(args: ParsedArgs): Promise<number> {
  const box = await Box.get(args.required(0, "the box's name"), cliRuntime().runtime)
  args.atMost(1)
  const lines = args.number('tail')
  const path = args.flag('console') ? box.folder.consoleLog : box.folder.outputLog
  let at = lines === undefined || !existsSync(path) ? 0 : startOfLast(path, lines)
  for (;;) {
    const running = box.state === 'running'
    if (existsSync(path) && statSync(path).size > at) {
      for await (const chunk of createReadStream(path, { start: at })) {
        at += (chunk as Buffer).length
        process.stdout.write(chunk as Buffer)
      }
    }
    if (!args.flag('follow') || !running) return 0
    await sleep(FOLLOW_MS)
  }
}

/** Where the last lines of a file begin, read from its end. */
function startOfLast(path: string, lines: number): number {
  const fd = openSync(path, 'r')
  try {
    const chunk = Buffer.alloc(CHUNK_BYTES)
    const { size } = statSync(path)
    // The newline at the very end ends the last line, and begins none.
    let left = lines + 1
    for (let end = size; end > 0; ) {
      const start = Math.max(0, end - CHUNK_BYTES)
      readSync(fd, chunk, 0, end - start, start)
      for (let i = end - start - 1; i >= 0; i--) {
        if (chunk[i] === NEWLINE && --left === 0) return start + i + 1
      }
      end = start
    }
    return 0
  } finally {
    closeSync(fd)
  }
}
