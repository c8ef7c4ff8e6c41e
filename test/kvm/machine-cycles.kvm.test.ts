/**
 * Machines one after the other, on real KVM: nothing of them stays. Starting threads is slow in the emulated host, so there are
 * few; `VITRINE_CYCLES=100 npm run test:kvm -- machine-cycles` makes a hundred.
 */
import { machineCycleTest } from '../boot/machine-cycles.ts'

machineCycleTest('kvm', 10, 180_000)
