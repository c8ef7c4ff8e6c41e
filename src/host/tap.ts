/** A tap device: ethernet frames to and from the kernel's own stack. The tests' other end of the wire. */
import { check, sys } from './libc.ts'

const O_RDWR = 2
const O_NONBLOCK = 0o4000
const O_CLOEXEC = 0o2000000
export const TUNSETIFF = 0x4004_54ca
export const TUNSETOFFLOAD = 0x4004_54d0
export const TUNSETVNETHDRSZ = 0x4004_54d8
const IFF_TAP = 2
const IFF_NO_PI = 0x1000
const IFF_VNET_HDR = 0x4000
const TUN_F_CSUM = 1
const TUN_F_TSO4 = 2
const TUN_F_TSO6 = 4
/** `struct ifreq`: a name of 16 bytes, then the flags. */
export const IFREQ = { size: 40, flags: 16 } as const

/** Makes the tap `name`; its descriptor. With `offloads`, every frame has a `virtio_net_hdr` of 10 bytes before it. */
export function openTap(name: string, offloads: boolean): number {
  const fd = check(sys.open('/dev/net/tun', O_RDWR | O_NONBLOCK | O_CLOEXEC, 0), 'open', '/dev/net/tun')
  const request = new Uint8Array(IFREQ.size)
  request.set(new TextEncoder().encode(name).subarray(0, 15))
  new DataView(request.buffer).setUint16(IFREQ.flags, IFF_TAP | IFF_NO_PI | (offloads ? IFF_VNET_HDR : 0), true)
  // Safe: an ifreq of its whole size.
  check(sys.ioctl(fd, TUNSETIFF, request), 'ioctl TUNSETIFF', name)
  // Safe: the argument is a number.
  if (offloads) check(sys.ioctlValue(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6), 'ioctl TUNSETOFFLOAD')
  return fd
}
