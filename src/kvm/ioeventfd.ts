/** Doorbells: KVM signals an eventfd when the guest writes a value to an address, with no exit to user space. */
import { ioctl } from './ioctl.ts'
import { KVM } from './ioctls.ts'
import { IOEVENTFD } from './structs.ts'

function request(vmFd: number, fd: number, address: number, match: number, flags: number): void {
  const argument = IOEVENTFD.create()
    .set('addr', BigInt(address))
    .set('datamatch', BigInt(match))
    .set('len', 4)
    .set('fd', fd)
    .set('flags', KVM.KVM_IOEVENTFD_FLAG_DATAMATCH | flags)
  ioctl(vmFd, 'KVM_IOEVENTFD', argument.bytes)
}

/** Rings `fd` when the guest writes the 32-bit value `match` to guest-physical `address`. */
export const addIoEventFd = (vmFd: number, fd: number, address: number, match: number): void =>
  request(vmFd, fd, address, match, 0)

export const removeIoEventFd = (vmFd: number, fd: number, address: number, match: number): void =>
  request(vmFd, fd, address, match, KVM.KVM_IOEVENTFD_FLAG_DEASSIGN)
