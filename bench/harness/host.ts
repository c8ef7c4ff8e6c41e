/** The facts about this machine that belong with every figure. */
import { cpus, release, totalmem } from 'node:os'

export function hostFacts(): Record<string, string | number> {
  const processors = cpus()
  return {
    cpu: processors[0]?.model.trim() ?? 'unknown',
    cores: processors.length,
    memoryMiB: Math.round(totalmem() / 2 ** 20),
    kernel: release(),
    node: process.version,
  }
}
