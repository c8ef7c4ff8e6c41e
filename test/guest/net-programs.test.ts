/** What people use a network with, in a Debian guest on the software CPU. */
import { testNetworkPrograms } from '../net/programs.ts'

testNetworkPrograms(undefined, 1)
