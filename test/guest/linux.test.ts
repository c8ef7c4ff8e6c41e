/** Debian's kernel on the software CPU, which runs anywhere. */
import { describe } from 'vitest'
import { acceleratorNames } from '../../src/accel/select.ts'
import { linuxBootTests } from '../boot/linux-boot.ts'

describe.skipIf(!acceleratorNames().includes('soft'))("Debian's kernel on the software CPU", () =>
  linuxBootTests('soft'),
)
