/** Printing for people and for scripts: tables, sizes, ages, JSON, and progress that only a terminal sees. */
import type { Progress } from '../image/progress.ts'

export function printJson(value: unknown): void {
  process.stdout.write(`${JSON.stringify(value, null, 2)}\n`)
}

/** Columns as wide as they need to be; the last is not padded. */
export function printTable(head: readonly string[], rows: readonly (readonly string[])[]): void {
  const all = [head, ...rows]
  const widths = head.map((_, column) => Math.max(...all.map(row => (row[column] ?? '').length)))
  for (const row of all) {
    const cells = row.map((cell, column) => (column === row.length - 1 ? cell : cell.padEnd(widths[column]!)))
    process.stdout.write(`${cells.join('  ')}\n`)
  }
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let value = bytes
  let unit = 0
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024
    unit++
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`
}

/** How long ago, in the largest unit that fits. */
export function formatAge(since: Date, now: Date = new Date()): string {
  const seconds = Math.max(0, Math.round((now.getTime() - since.getTime()) / 1000))
  const steps: [limit: number, size: number, name: string][] = [
    [60, 1, 'second'],
    [3600, 60, 'minute'],
    [86_400, 3600, 'hour'],
    [Number.POSITIVE_INFINITY, 86_400, 'day'],
  ]
  const [, size, name] = steps.find(([limit]) => seconds < limit)!
  const count = Math.floor(seconds / size)
  return `${count} ${name}${count === 1 ? '' : 's'} ago`
}

const BAR_WIDTH = 24
const REDRAW_MS = 50
/** Work that shows no bar for this long shows its seconds, so that one sees that it goes on. */
const SECONDS_AFTER_MS = 2000

/** One line on standard error that shows what is going on; nothing at all when standard error is not a terminal. */
export class ProgressLine {
  readonly #visible = process.stderr.isTTY === true
  #text = ''
  #since = 0
  #last = 0
  #shown = false
  #clock: NodeJS.Timeout | undefined

  /** The same of an event; undefined: there is nothing more to show. */
  show(progress: Progress | undefined): void {
    if (progress) this.update(progress.text, progress.done, progress.total)
    else this.clear()
  }

  /** `done` of `total`, in bytes; without a total only the text is shown. */
  update(text: string, done?: number, total?: number): void {
    if (!this.#visible) return
    const now = Date.now()
    clearInterval(this.#clock)
    if (text !== this.#text) this.#since = now
    this.#text = text
    if (done === undefined) {
      this.#clock = setInterval(() => this.#draw(this.#withSeconds()), 1000)
      this.#clock.unref()
      this.#draw(this.#withSeconds())
    } else if (now - this.#last >= REDRAW_MS || done === total) this.#draw(bar(text, done, total))
  }

  #withSeconds(): string {
    const waited = Date.now() - this.#since
    return waited < SECONDS_AFTER_MS ? this.#text : `${this.#text}  ${Math.floor(waited / 1000)} s`
  }

  /** No longer than the terminal is wide: a line that wrapped could not be taken away. */
  #draw(line: string): void {
    this.#last = Date.now()
    this.#shown = true
    process.stderr.write(`\r\x1b[K${line.slice(0, (process.stderr.columns || 80) - 1)}`)
  }

  /** Takes the line away. */
  clear(): void {
    clearInterval(this.#clock)
    if (!this.#shown) return
    process.stderr.write('\r\x1b[K')
    this.#shown = false
    this.#text = ''
  }
}

function bar(text: string, done: number, total: number | undefined): string {
  if (total === undefined || total <= 0) return `${text}  ${formatBytes(done)}`
  const filled = Math.round((Math.min(done, total) / total) * BAR_WIDTH)
  return `${text}  ${'#'.repeat(filled)}${'-'.repeat(BAR_WIDTH - filled)}  ${formatBytes(done)} of ${formatBytes(total)}`
}
