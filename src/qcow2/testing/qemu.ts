/** The oracle: QEMU's own tools, run as processes. */
import { spawnSync } from 'node:child_process'

export interface Outcome {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

function run(command: string, args: readonly string[]): Outcome {
  const { status, stdout, stderr, error } = spawnSync(command, args, { encoding: 'utf8', timeout: 60_000 })
  if (error) throw error
  return { status, stdout, stderr }
}

export const qemuImg = (...args: string[]): Outcome => run('qemu-img', args)
export const qemuIo = (...args: string[]): Outcome => run('qemu-io', args)

/** Why the oracle cannot be asked here, or undefined. */
export const qemuMissing: string | undefined = (() => {
  const { error } = spawnSync('qemu-img', ['--version'])
  return error ? 'qemu-img is not installed (apt-get install qemu-utils)' : undefined
})()

export interface CheckReport {
  readonly corruptions?: number
  readonly leaks?: number
  readonly 'check-errors': number
}

/** `qemu-img check`, as JSON. */
export function qemuCheck(path: string): CheckReport {
  const { stdout, stderr } = qemuImg('check', '-f', 'qcow2', '--output=json', path)
  try {
    return JSON.parse(stdout) as CheckReport
  } catch {
    throw new Error(`qemu-img check ${path}: ${stdout}${stderr}`)
  }
}

/** Runs qemu-img and throws with its words when it fails. */
export function qemuImgOk(...args: string[]): string {
  const outcome = qemuImg(...args)
  if (outcome.status !== 0) throw new Error(`qemu-img ${args.join(' ')}: ${outcome.stdout}${outcome.stderr}`)
  return outcome.stdout
}

export function qemuIoOk(path: string, format: string, ...commands: string[]): string {
  const outcome = qemuIo('-f', format, ...commands.flatMap(command => ['-c', command]), path)
  // qemu-io exits 0 even when a command fails, so its words are looked at.
  if (outcome.status !== 0 || /failed|error/i.test(outcome.stdout + outcome.stderr)) {
    throw new Error(`qemu-io ${path} ${commands.join('; ')}: ${outcome.stdout}${outcome.stderr}`)
  }
  return outcome.stdout
}
