/** A machine's process killed in the middle of its writes: what was flushed is there, and the image is whole. */
import { execFileSync, spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, it } from 'vitest'
import { BLOCK, BLOCKS, blockOf } from './kill-pattern.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-kill-'))
afterAll(() => rmSync(folder, { recursive: true }))

const ROUNDS = Number(process.env.VITRINE_KILL_ROUNDS ?? 2)
const WRITER = fileURLToPath(new URL('kill-writer.ts', import.meta.url))

/** Runs the writer until it has said `flushes` lines, and kills it then; the last line that it said. */
function runAndKill(path: string, format: string, first: number, flushes: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, ['--import', 'tsx', WRITER, path, format, String(first)], {
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    let said = ''
    let complaint = ''
    child.stdout.on('data', (chunk: Buffer) => {
      said += chunk.toString()
      if (said.split('\n').length > flushes) child.kill('SIGKILL')
    })
    child.stderr.on('data', (chunk: Buffer) => {
      complaint += chunk.toString()
    })
    child.on('close', (_code, signal) => {
      const lines = said.split('\n').slice(0, -1)
      if (signal !== 'SIGKILL' || lines.length === 0) reject(new Error(`the writer ended by itself: ${complaint}`))
      else resolve(Number(lines.at(-1)))
    })
  })
}

describe.each(['raw', 'qcow2'])('a %s disk whose process is killed', format => {
  it(
    `loses nothing that was flushed, ${ROUNDS} times in a row`,
    async () => {
      const path = join(folder, `disk.${format}`)
      const flat = join(folder, `flat.${format}`)
      execFileSync('qemu-img', ['create', '-q', '-f', format, path, String(BLOCK * BLOCKS)])
      let next = 1
      /** The number of the last flushed write to each block. */
      const flushed = new Uint32Array(BLOCKS)
      for (let round = 0; round < ROUNDS; round++) {
        const last = await runAndKill(path, format, next, 20 + ((round * 37) % 100))
        for (let number = next; number <= last; number++) flushed[blockOf(number)] = number
        // Writes after the last flush may be there or not; the next writer uses none of their numbers.
        next = last + 10_000
        next -= next % 5
        if (format === 'qcow2') {
          // Leaks are what a kill may leave; qemu-img exits with 3 for those alone.
          const check = spawnCheck(path)
          expect([0, 3]).toContain(check)
        }
        execFileSync('qemu-img', ['convert', '-f', format, '-O', 'raw', path, flat])
        const bytes = readFileSync(flat)
        const lost: string[] = []
        for (let block = 0; block < BLOCKS; block++) {
          const found = bytes.readUInt32LE(block * BLOCK)
          const whole = bytes
            .subarray(block * BLOCK, (block + 1) * BLOCK)
            .every((byte, i) => byte === bytes[block * BLOCK + (i & 3)])
          const newer = found > flushed[block]! && blockOf(found) === block
          if (!whole || (found !== flushed[block] && !newer))
            lost.push(`block ${block}: ${found}, not ${flushed[block]}`)
          // What survived without a flush counts from here on.
          if (newer) flushed[block] = found
        }
        expect(lost).toEqual([])
      }
    },
    120_000 * ROUNDS,
  )
})

function spawnCheck(path: string): number {
  try {
    execFileSync('qemu-img', ['check', '-q', '-f', 'qcow2', path], { stdio: 'pipe' })
    return 0
  } catch (error) {
    return (error as { status: number }).status
  }
}
