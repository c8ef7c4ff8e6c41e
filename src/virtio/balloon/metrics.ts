/** What a balloon counts. */
export const BALLOON_COUNTERS = ['inflatedPages', 'deflatedPages', 'reportedBytes', 'droppedBytes', 'badPages'] as const
export const INFLATED_PAGES = 0
export const DEFLATED_PAGES = 1
export const REPORTED_BYTES = 2
export const DROPPED_BYTES = 3
export const BAD_PAGES = 4
