/**
 * What a guest is busy with while it is saved: a counter in one process that keeps a journal in a file, a pipe between two others,
 * a TCP server and a client that has one connection to it all the time. Each checks that what it gets is what comes next, and says
 * so in `failed` if not. A line of the journal has a UUID of the kernel's, so that two machines with the same past agree on
 * exactly the lines of that past.
 */
import { existsSync, readFileSync } from 'node:fs'
import { basename } from 'node:path'
import type { Box } from '../../src/box/box.ts'

const FOLDER = '/root/load'
/** Of the TCP server in the guest. */
export const LOAD_PORT = 7000
/** How many of the last characters of a log are shown. */
const WORDS = 3000

const SCRIPT = `
cd ${FOLDER}
fail() { echo "$*" >> failed; }
chmod +x serve
journal() {
  n=0
  while :; do
    n=$((n+1))
    read id < /proc/sys/kernel/random/uuid
    echo "$n $id" >> journal
    if [ -e hold ]; then echo $n > held; while [ -e hold ]; do usleep 20000; done; rm -f held; fi
    usleep 2000
  done
}
give() { n=0; while :; do n=$((n+1)); echo $n; usleep 2000; done; }
take() { n=0; while read x; do n=$((n+1)); [ "$x" = $n ] || fail pipe $x $n; echo $n > piped.new; mv piped.new piped; done; fail pipe ended; }
ask() {
  mkfifo to from
  nc 127.0.0.1 ${LOAD_PORT} < to > from &
  exec 3> to 4< from
  n=0
  while :; do
    n=$((n+1))
    echo $n >&3
    read a b <&4 || { fail connection ended; exit; }
    [ "$a $b" = "$n $n" ] || fail server $a $b $n
    echo $n > asked.new; mv asked.new asked
    usleep 2000
  done
}
journal &
give | take &
nc -ll -p ${LOAD_PORT} -e ${FOLDER}/serve &
usleep 300000
ask &
wait
`
const SERVE = '#!/bin/sh\nn=0\nwhile read x; do n=$((n+1)); echo "$x $n"; done\n'

/** Starts it all; resolves when every part of it has done something. */
export async function startLoad(box: Box): Promise<void> {
  await box.exec('mkdir', ['-p', FOLDER])
  await box.files.write(`${FOLDER}/serve`, SERVE)
  await box.files.write(`${FOLDER}/load`, SCRIPT)
  await sh(box, `setsid sh ${FOLDER}/load </dev/null >/dev/null 2>&1 &`)
  await sh(box, `cd ${FOLDER}; until [ -e journal ] && [ -e piped ] && [ -e asked ]; do usleep 50000; done`)
}

/** How far each part is. */
export interface Progress {
  readonly journal: number
  readonly piped: number
  readonly asked: number
}

export async function progressOf(box: Box): Promise<Progress> {
  const out = await sh(box, `cd ${FOLDER}; wc -l < journal; cat piped; cat asked`)
  const [journal, piped, asked] = out.trim().split('\n').map(Number)
  return { journal: journal!, piped: piped!, asked: asked! }
}

/** Waits until every part is further than `than`. */
export async function advances(box: Box, than: Progress): Promise<void> {
  await sh(
    box,
    `cd ${FOLDER}; until [ $(wc -l < journal) -gt ${than.journal} ] && [ $(cat piped) -gt ${than.piped} ] && [ $(cat asked) -gt ${than.asked} ]; do usleep 50000; done`,
  )
}

/** The journal's lines, written while its process holds still, with the number that it has in memory. */
export async function holdJournal(box: Box): Promise<{ lines: string[]; count: number }> {
  const out = await sh(
    box,
    `cd ${FOLDER}; touch hold; until [ -s held ]; do usleep 20000; done; cat held journal; rm hold`,
  )
  const [count, ...lines] = out.trim().split('\n')
  return { lines, count: Number(count) }
}

/** What went wrong in the guest; empty when nothing did. */
export const failures = (box: Box): Promise<string> => sh(box, `cat ${FOLDER}/failed 2>/dev/null || true`)

/** Lines that two journals have in common, from the start. */
export function commonLines(a: readonly string[], b: readonly string[]): number {
  let count = 0
  while (count < a.length && count < b.length && a[count] === b[count]) count++
  return count
}

export async function sh(box: Box, script: string): Promise<string> {
  const { stdout, stderr, exitCode } = await box.exec('sh', ['-c', script]).catch((error: Error) => {
    throw new Error(`'${script}' in ${box.name}: ${error.message}\n${lastWordsOf(box)}`, { cause: error })
  })
  if (exitCode !== 0) throw new Error(`'${script}' ended with ${exitCode}: ${stderr}`)
  return stdout
}

/** What a box that is no longer there has left. */
function lastWordsOf({ folder }: Box): string {
  const files = [folder.lastExit, folder.vmmLog, folder.consoleLog].filter(file => existsSync(file))
  return files.map(file => `${basename(file)}: ${readFileSync(file, 'utf8').slice(-WORDS)}`).join('\n')
}
