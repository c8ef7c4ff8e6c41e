/** Which build of Vitrine this is: what depends on how guests, snapshots and the software CPU look in memory is of use to the same one only. */
import { readFileSync } from 'node:fs'
import { assetPath } from '../host/assets.ts'

export const buildId = (): string => readFileSync(assetPath('build-id'), 'utf8').trim()
