/** How Node has to be started to be forked (fork.ts). */
export const FORKABLE_NODE_OPTIONS: readonly string[] = ['--single-threaded', '--v8-pool-size=1']
