/** vsock with a Linux guest on the software CPU. VITRINE_VSOCK_MIB=1024 for the long way. */
import { describeVsock } from '../virtio/vsock-guest.ts'

const mebibytes = Number(process.env.VITRINE_VSOCK_MIB ?? 16)
describeVsock({ accel: 'soft', limitMs: 120_000 + mebibytes * 2000, mebibytes, connections: 1000 })
