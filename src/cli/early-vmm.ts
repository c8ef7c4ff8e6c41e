/** Loaded before the command line itself, for commands that start a box: that process takes longest, and begins while the rest is loaded. */
import { startVmmEarly } from '../box/vmm-process.ts'

startVmmEarly()
