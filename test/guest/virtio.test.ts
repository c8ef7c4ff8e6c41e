/** Every virtio device with Linux's drivers, on the software CPU. */
import { describeDevices } from '../virtio/devices.ts'

describeDevices({ accel: 'soft', limitMs: 300_000 })
