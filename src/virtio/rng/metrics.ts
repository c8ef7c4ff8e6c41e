/** What the entropy device counts. */
export const RNG_COUNTERS = ['requests', 'bytes'] as const
export const REQUESTS = 0
export const BYTES = 1
