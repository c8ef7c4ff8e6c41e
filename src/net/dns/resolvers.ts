/** The host's DNS servers: resolv.conf(5). */
import { readFileSync } from 'node:fs'
import { isAddress, parseAddress } from '../addresses.ts'

const MAX_RESOLVERS = 3

export function parseResolvConf(text: string): Uint8Array[] {
  const found: Uint8Array[] = []
  for (const line of text.split('\n')) {
    const match = /^\s*nameserver\s+(\S+)/.exec(line)
    const address = match?.[1]?.replace(/%.*$/, '')
    if (address !== undefined && isAddress(address) && found.length < MAX_RESOLVERS) found.push(parseAddress(address))
  }
  return found
}

/** The servers of this host; its own loopback when it names none, as the C library has it. */
export function hostResolvers(path = '/etc/resolv.conf'): Uint8Array[] {
  let text = ''
  try {
    text = readFileSync(path, 'utf8')
  } catch {
    // No file: the default below.
  }
  const found = parseResolvConf(text)
  return found.length > 0 ? found : [parseAddress('127.0.0.1')]
}
