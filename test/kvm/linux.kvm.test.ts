/** Debian's kernel on real KVM, in the emulated AMD host. */
import { describe } from 'vitest'
import { linuxBootTests } from '../boot/linux-boot.ts'

describe("Debian's kernel on KVM", () => linuxBootTests('kvm'))
