/** /dev/kvm itself: opening it, what it can do, and making virtual machines. */
import { constants } from 'node:fs'
import { HostError } from '../host/errors.ts'
import { closeFd, openFd } from '../host/file.ts'
import { KvmError } from './errors.ts'
import { ioctl, ioctlValue } from './ioctl.ts'
import { CAP, KVM } from './ioctls.ts'
import { CPUID_ENTRY2, CPUID2, MSR_LIST } from './structs.ts'

export const KVM_DEVICE = '/dev/kvm'

/** More than any kernel's lists; both requests say E2BIG or EAGAIN-like errors when it is not. */
const MAX_CPUID_ENTRIES = 256
const MAX_MSRS = 1024

export type CapabilityName = keyof typeof CAP

/** What we cannot do without, and what for. */
export const NEEDED_CAPABILITIES: readonly (readonly [CapabilityName, string])[] = [
  ['KVM_CAP_USER_MEMORY', 'guest memory'],
  ['KVM_CAP_EXT_CPUID', 'CPUID'],
  ['KVM_CAP_SET_TSS_ADDR', 'real mode on Intel'],
  ['KVM_CAP_SET_IDENTITY_MAP_ADDR', 'real mode on Intel'],
  ['KVM_CAP_IRQCHIP', 'interrupt controllers'],
  ['KVM_CAP_PIT2', 'the timer'],
  ['KVM_CAP_IRQFD', "devices' interrupts"],
  ['KVM_CAP_IOEVENTFD', "devices' doorbells"],
  ['KVM_CAP_IMMEDIATE_EXIT', 'stopping a vCPU'],
  ['KVM_CAP_MP_STATE', 'more than one CPU'],
  ['KVM_CAP_PIT_STATE2', 'saving'],
  ['KVM_CAP_ADJUST_CLOCK', 'saving'],
  ['KVM_CAP_VCPU_EVENTS', 'saving'],
  ['KVM_CAP_DEBUGREGS', 'saving'],
  ['KVM_CAP_XSAVE', 'saving'],
  ['KVM_CAP_XCRS', 'saving'],
]

/** Asked of /dev/kvm or of a VM, which may answer differently. */
export const capabilityOf = (fd: number, name: CapabilityName): number =>
  ioctlValue(fd, 'KVM_CHECK_EXTENSION', CAP[name])

export class KvmSystem {
  readonly fd: number

  private constructor(fd: number) {
    this.fd = fd
  }

  static open(path: string = KVM_DEVICE): KvmSystem {
    try {
      return new KvmSystem(openFd(path, constants.O_RDWR | 0o2000000 /* O_CLOEXEC */))
    } catch (error) {
      if (!(error instanceof HostError)) throw error
      if (error.code === 'EACCES' || error.code === 'EPERM') {
        throw new KvmError(
          'FORBIDDEN',
          `${path} may not be opened by this user: add the user to the group that owns it (usually: sudo usermod -aG kvm $USER), then log in again`,
          error,
        )
      }
      throw new KvmError(
        'ABSENT',
        `${path} cannot be opened (${error.code}): enable virtualisation in the firmware or, in a cloud, on the instance, and load kvm_intel or kvm_amd`,
        error,
      )
    }
  }

  close(): void {
    closeFd(this.fd)
  }

  apiVersion(): number {
    return ioctlValue(this.fd, 'KVM_GET_API_VERSION')
  }

  /** 0 when it is missing; otherwise 1 or what the capability means by its number. */
  capability(name: CapabilityName): number {
    return capabilityOf(this.fd, name)
  }

  missingCapabilities(): readonly (readonly [CapabilityName, string])[] {
    return NEEDED_CAPABILITIES.filter(([name]) => this.capability(name) === 0)
  }

  /** Throws when this KVM is not one that we can use. */
  requireSupport(): void {
    const version = this.apiVersion()
    if (version !== KVM.KVM_API_VERSION) {
      throw new KvmError('UNSUPPORTED', `KVM has API version ${version}; version ${KVM.KVM_API_VERSION} is needed`)
    }
    const missing = this.missingCapabilities()
    if (missing.length > 0) {
      const list = missing.map(([name, use]) => `${name} (${use})`).join(', ')
      throw new KvmError('UNSUPPORTED', `this KVM lacks ${list}: a newer kernel is needed, or the software CPU`)
    }
  }

  vcpuMmapSize(): number {
    return ioctlValue(this.fd, 'KVM_GET_VCPU_MMAP_SIZE')
  }

  /** A new VM's descriptor. KVM says EINTR here when a signal comes, which `ioctlValue` tries again. */
  createVm(): number {
    return ioctlValue(this.fd, 'KVM_CREATE_VM')
  }

  /** The `kvm_cpuid_entry2` records that KVM can give a guest. */
  supportedCpuid(): Uint8Array {
    const list = CPUID2.create(MAX_CPUID_ENTRIES * CPUID_ENTRY2.size)
    list.set('nent', MAX_CPUID_ENTRIES)
    ioctl(this.fd, 'KVM_GET_SUPPORTED_CPUID', list.bytes)
    return list.bytes.slice(CPUID2.size, CPUID2.size + list.get('nent') * CPUID_ENTRY2.size)
  }

  /** The model-specific registers whose values make up a vCPU's state. */
  msrIndices(): Uint32Array {
    const list = MSR_LIST.create(MAX_MSRS * 4)
    list.set('nmsrs', MAX_MSRS)
    ioctl(this.fd, 'KVM_GET_MSR_INDEX_LIST', list.bytes)
    const indices = new Uint32Array(list.get('nmsrs'))
    for (let i = 0; i < indices.length; i++) indices[i] = list.view.getUint32(MSR_LIST.size + i * 4, true)
    return indices
  }
}
