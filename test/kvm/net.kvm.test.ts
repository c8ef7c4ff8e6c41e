/** The network on KVM. */
import { testNetwork } from '../net/network.ts'

testNetwork('kvm', 240_000)
