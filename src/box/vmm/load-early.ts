/** What a VMM needs and loads only when it is first used: done while there is nothing else to do. */
import * as cluster from 'node:cluster'
import * as crypto from 'node:crypto'
import * as dgram from 'node:dgram'
import * as net from 'node:net'
import * as readline from 'node:readline'

/** Modules of Node stand for what is loaded when something of them is looked at (scripts/build.ts). Servers need `cluster`. */
export function loadEarly(): void {
  for (const module of [cluster, crypto, dgram, net, readline]) Object.values(module)
  void performance.now()
}
