/** The emulated host itself: what the other tests in this folder stand on. */
import { constants, existsSync, readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { closeFd, openFd } from '../../src/host/file.ts'
import { check, sys } from '../../src/host/libc.ts'

/** From <linux/kvm.h>. */
const KVM_GET_API_VERSION = 0xae00
const KVM_CREATE_VM = 0xae01

describe('the emulated AMD host', () => {
  it('has loaded kvm-amd with nested paging', () => {
    expect(existsSync('/sys/module/kvm_amd')).toBe(true)
    expect(readFileSync('/sys/module/kvm_amd/parameters/npt', 'utf8').trim()).toMatch(/^[Y1]$/)
  })

  it('speaks version 12 of the KVM interface and creates a virtual machine', () => {
    const kvm = openFd('/dev/kvm', constants.O_RDWR)
    // Safe: neither call takes a pointer.
    expect(sys.ioctl(kvm, KVM_GET_API_VERSION, 0)).toBe(12)
    const vm = check(sys.ioctl(kvm, KVM_CREATE_VM, 0), 'KVM_CREATE_VM')
    closeFd(vm)
    closeFd(kvm)
  })
})
