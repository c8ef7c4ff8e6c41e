/** A hundred machines one after the other, on real KVM: nothing of them stays. One takes half a second in the emulated host. */
import { machineCycleTest } from '../boot/machine-cycles.ts'

machineCycleTest('kvm', 100, 900_000)
