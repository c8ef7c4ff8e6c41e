/**
 * What has to happen when this process exits. Node waits for its workers then, and one that is inside a blocking call (KVM_RUN,
 * poll) returns to JavaScript only if somebody wakes it. One listener serves any number of owners.
 */
const steps = new Set<() => void>()

function runSteps(): void {
  for (const step of steps) {
    try {
      step()
    } catch {
      // The process ends whatever happens here; the other steps still have their turn.
    }
  }
}

/** Has `step` called at the process's exit. The result takes that back. */
export function atProcessExit(step: () => void): () => void {
  if (steps.size === 0) process.on('exit', runSteps)
  steps.add(step)
  return () => {
    if (steps.delete(step) && steps.size === 0) process.off('exit', runSteps)
  }
}
