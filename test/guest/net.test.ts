/** The network on the software CPU. */
import { testNetwork } from '../net/network.ts'

testNetwork('soft', 150_000)
