/** Every virtio device with Linux's drivers, on the software CPU. */
import { describeDevices } from '../virtio/devices.ts'

describeDevices('soft', 300_000)
