/** Machines one after the other, on real KVM: nothing of them stays. Starting threads is slow in the emulated host, so there are few. */
import { machineCycleTest } from '../boot/machine-cycles.ts'

machineCycleTest('kvm', 20, 280_000)
