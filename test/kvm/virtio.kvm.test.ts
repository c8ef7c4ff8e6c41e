/** Every virtio device with Linux's drivers, on kvm-amd. */
import { describeDevices } from '../virtio/devices.ts'

describeDevices('kvm', 170_000)
