/** Every virtio device with Linux's drivers, on kvm-amd. */
import { describeDevices } from '../virtio/devices.ts'

describeDevices({ accel: 'kvm', limitMs: 300_000 })
