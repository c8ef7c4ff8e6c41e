/** Puts the Debian packages that tests use in place when we may, and says what to install when we may not. */
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { DEBIAN_PACKAGES, type DebianPackage } from './debian-packages.ts'

const LISTS = '/var/lib/apt/lists'

const absentOf = (packages: readonly DebianPackage[]): DebianPackage[] =>
  packages.filter(({ file }) => !existsSync(file))

export const absentPackages = (): DebianPackage[] => absentOf(DEBIAN_PACKAGES)

function aptGet(...args: string[]): boolean {
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  const { status } = spawnSync('apt-get', ['-qq', '-o', 'Dpkg::Use-Pty=0', ...args], {
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  return status === 0
}

/** True when apt has package lists, without which it can neither install nor download. */
const hasLists = (): boolean => existsSync(LISTS) && readdirSync(LISTS).some(file => file.includes('_Packages'))

/**
 * Installs what is absent, if this is root on a system with apt. Returns what is still absent afterwards; a failure to
 * install is not an error here, since the tests that need the package say so themselves.
 */
export function provision(
  log: (message: string) => void,
  packages: readonly DebianPackage[] = DEBIAN_PACKAGES,
  mayInstall = process.getuid?.() === 0 && existsSync('/usr/bin/apt-get'),
): DebianPackage[] {
  if (mayInstall && !hasLists()) {
    log('fetching the lists of Debian packages')
    aptGet('update')
  }
  const absent = absentOf(packages)
  if (absent.length === 0) return []
  const names = absent.map(({ name }) => name)
  if (mayInstall) {
    log(`installing ${names.join(' ')}`)
    const install = () => aptGet('install', '--yes', '--no-install-recommends', ...names)
    // Lists that are too old name packages that the archive no longer has.
    if (!install() && aptGet('update')) install()
  }
  const left = absentOf(packages)
  if (left.length > 0) {
    log('not installed, so the tests that need them are skipped:')
    for (const { name, reason } of left) log(`  ${name}: ${reason}`)
    log(`to install them: sudo apt-get install ${left.map(({ name }) => name).join(' ')}`)
  }
  return left
}
