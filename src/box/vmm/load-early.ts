/** What a VMM needs and loads only when it is first used: done while there is nothing else to do. */
import cluster from 'node:cluster'
import { createHash } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { Socket } from 'node:net'

/** Modules of Node stand for what is loaded when something of them is looked at (scripts/build.ts). Servers need `cluster`. Returned, so that it counts as used. */
export const loadEarly = (): readonly unknown[] => [
  cluster.isPrimary,
  createHash,
  createSocket,
  Socket,
  performance.now(),
]
