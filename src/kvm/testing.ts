/** Whether tests on /dev/kvm can run here. */
import { accessSync, constants } from 'node:fs'

/** True when tests on /dev/kvm cannot run here. */
export function kvmUnusable(): boolean {
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK)
    return false
  } catch {
    return true
  }
}
