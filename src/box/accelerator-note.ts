/**
 * That KVM is of no use on this host, remembered in the home until the host boots again or its /dev/kvm changes: where kernel code is emulated, the
 * probe that finds out takes longer than a box takes to start from a template.
 */
import { accessSync, constants, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs'
import type { AcceleratorName } from '../accel/contract.ts'
import { ACCELERATOR_VARIABLE, requireAccelerator } from '../accel/select.ts'
import { buildId } from './build-id.ts'
import { noKvmNote } from './home.ts'

const DEVICE = '/dev/kvm'

/** A text that is another one when the answer might be; undefined: nothing can be remembered here. */
function hostKey(): string | undefined {
  try {
    const boot = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim()
    const { rdev, ino, ctimeMs } = statSync(DEVICE)
    accessSync(DEVICE, constants.R_OK | constants.W_OK)
    return [boot, rdev, ino, ctimeMs, buildId()].join(' ')
  } catch {
    // Without a /dev/kvm that opens there is nothing to measure: the probe is quick.
    return undefined
  }
}

/** The accelerator for a box of which nobody has said on which it is to run, or somebody has. */
export async function acceleratorFor(home: string, wanted: string | undefined): Promise<AcceleratorName> {
  const isOpen = (wanted ?? 'auto') === 'auto' && !process.env[ACCELERATOR_VARIABLE]
  const key = isOpen ? hostKey() : undefined
  const path = noKvmNote(home)
  if (key !== undefined && readNote(path) === key) return 'soft'
  const { name } = await requireAccelerator(wanted)
  if (key !== undefined && name === 'soft') writeNote(path, key)
  return name
}

function readNote(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return undefined
  }
}

function writeNote(path: string, key: string): void {
  try {
    const temporary = `${path}.${process.pid}`
    writeFileSync(temporary, key, { mode: 0o600 })
    renameSync(temporary, path)
  } catch {
    // A full disk: it is found out again next time.
  }
}
