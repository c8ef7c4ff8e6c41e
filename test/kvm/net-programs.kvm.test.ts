/** What people use a network with, in a Debian guest on KVM. It takes half an hour in there: only with VITRINE_LONG=1. */
import { describe } from 'vitest'
import { testNetworkPrograms } from '../net/programs.ts'

describe.skipIf(process.env.VITRINE_LONG === undefined)('the network on KVM', () => testNetworkPrograms('kvm', 4))
