/**
 * Who the guest may talk to. A rule names hosts, addresses or blocks; names are tied to addresses by the DNS answers that
 * the guest was given, so a name that was never asked for allows nothing. What is private, link-local or the host's own
 * needs an address rule that names it: a block that lies within the special block, or the host's very address, for 0.0.0.0/0 means
 * the internet and not the host's metadata server. The host's loopback needs `host.vitrine.internal`, or such a rule.
 *
 * Questions leave only about names that a rule allows. Rules of addresses alone allow none: whoever can ask for any name can say
 * anything to whoever owns its zone.
 */
import { networkInterfaces } from 'node:os'
import { anyContains, type Cidr, contains, formatAddress, parseAddress, parseCidr } from './addresses.ts'
import { HOST_NAME, type NetworkPolicy } from './description.ts'
import { NetError } from './errors.ts'

/** IANA's special-purpose registries (RFC 6890), and what was withdrawn: nothing of the public internet is in there. */
const SPECIAL = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  // 6to4 relays (RFC 7526): a way to an address that is not looked at here.
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/3',
  '::/96',
  // IPv4 addresses for translators (RFC 2765) and inside of Teredo's (RFC 4380).
  '::ffff:0:0:0/96',
  '64:ff9b:1::/48',
  '100::/64',
  '2001::/32',
  '2001:2::/48',
  '2001:10::/28',
  '2001:20::/28',
  '2001:db8::/32',
  '3fff::/20',
  '5f00::/16',
  'fc00::/7',
  'fe80::/10',
  'fec0::/10',
  'ff00::/8',
].map(parseCidr)

/** Addresses with an IPv4 address inside that a translator would reach (RFC 6052, 3056): judged by that one. */
const NAT64 = parseCidr('64:ff9b::/96')
const SIX_TO_FOUR = parseCidr('2002::/16')

interface Rules {
  readonly everything: boolean
  readonly host: boolean
  readonly names: readonly string[]
  readonly suffixes: readonly string[]
  readonly blocks: readonly Cidr[]
}

const NAME = /^(\*\.)?([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$/

function parseRules(rules: readonly string[]): Rules {
  const names: string[] = []
  const suffixes: string[] = []
  const blocks: Cidr[] = []
  for (const rule of rules) {
    const text = rule.toLowerCase().replace(/\.$/, '')
    if (rule === '*') continue
    if (/^[0-9.]+(\/|$)/.test(text) || text.includes(':')) blocks.push(parseRuleBlock(rule, text))
    else if (!NAME.test(text)) {
      throw new NetError(
        'BAD_RULE',
        `'${rule}' is no rule: give a host, *.host, an address, a block like 10.0.0.0/8, or *`,
      )
    } else if (text.startsWith('*.')) suffixes.push(text.slice(1))
    else names.push(text)
  }
  return { everything: rules.includes('*'), host: names.includes(HOST_NAME), names, suffixes, blocks }
}

function parseRuleBlock(rule: string, text: string): Cidr {
  try {
    return parseCidr(text)
  } catch (error) {
    throw new NetError('BAD_RULE', `the rule '${rule}' is not possible: ${(error as Error).message}`, { cause: error })
  }
}

/** Throws BAD_RULE when a policy cannot be: for those who want to know before there is a network. */
export function checkPolicy(policy: NetworkPolicy): void {
  new Policy(policy, () => 0)
}

const nameMatches = (rules: Rules, name: string): boolean =>
  rules.names.includes(name) || rules.suffixes.some(suffix => name.endsWith(suffix))

const NOTHING = parseRules([])
const EVERYTHING = parseRules(['*'])
const MAX_TIED = 4096
const MAX_NAMES = 64
const OWN_ADDRESSES_MS = 10_000
/** A connection may come a while after the answer: resolvers and browsers keep addresses longer than they should. */
const GRACE_MS = 60_000

interface Tie {
  until: number
  /** The guest asked for this very name; only such a one can allow. An alias that an answer went through can only deny. */
  asked: boolean
}

export class Policy {
  #allow: Rules = EVERYTHING
  #deny: Rules = NOTHING
  /** Names by the address that an answer gave for them. */
  readonly #tied = new Map<string, Map<string, Tie>>()
  readonly #clock: () => number
  #own: readonly Uint8Array[] = []
  #ownReadAt = Number.NEGATIVE_INFINITY

  constructor(policy: NetworkPolicy, clock: () => number) {
    this.#clock = clock
    this.change(policy)
  }

  /** Takes effect for new connections and questions. */
  change(policy: NetworkPolicy): void {
    if (policy === 'full' || policy === 'none') {
      this.#allow = policy === 'full' ? EVERYTHING : NOTHING
      this.#deny = NOTHING
      return
    }
    if (policy === null || typeof policy !== 'object') {
      throw new NetError('BAD_RULE', `'${policy}' is no policy: give 'full', 'none' or { allow, deny }`)
    }
    const allow = policy.allow === undefined ? EVERYTHING : parseRules(policy.allow)
    const deny = parseRules(policy.deny ?? [])
    this.#allow = allow
    this.#deny = deny
  }

  /** Whether the host's loopback may be reached by the gateway's address. */
  get host(): boolean {
    return this.#allow.host && !nameMatches(this.#deny, HOST_NAME)
  }

  /** Whether a question about `name` (lower case) may leave. */
  mayResolve(name: string): boolean {
    if (this.deniesName(name)) return false
    return this.#allow.everything || nameMatches(this.#allow, name)
  }

  /** Whether a rule forbids `name` (lower case), be it asked for or an alias that an answer leads through. */
  deniesName(name: string): boolean {
    return this.#deny.everything || nameMatches(this.#deny, name)
  }

  /** The guest was told, for `seconds`, that the first of `chain` has this address, by way of the others. */
  tie(chain: readonly string[], address: Uint8Array, seconds: number): void {
    const key = formatAddress(address)
    let names = this.#tied.get(key)
    if (names === undefined) {
      // The oldest goes first: Map keeps the order of insertion.
      if (this.#tied.size >= MAX_TIED) this.#tied.delete(this.#tied.keys().next().value!)
      names = new Map()
    } else this.#tied.delete(key)
    const until = this.#clock() + seconds * 1000 + GRACE_MS
    for (const [i, name] of chain.entries()) {
      const asked = i === 0 || (names.get(name)?.asked ?? false)
      if (names.size >= MAX_NAMES && !names.has(name)) names.delete(names.keys().next().value!)
      names.set(name, { until, asked })
    }
    this.#tied.set(key, names)
  }

  #anyTied(rules: Rules, address: Uint8Array, aliasesToo: boolean): boolean {
    if (rules.names.length === 0 && rules.suffixes.length === 0) return false
    const names = this.#tied.get(formatAddress(address))
    if (names === undefined) return false
    const now = this.#clock()
    for (const [name, { until, asked }] of names) {
      if (until >= now && (asked || aliasesToo) && nameMatches(rules, name)) return true
    }
    return false
  }

  /** Whether a new connection to `address` may be made. */
  mayConnect(address: Uint8Array): boolean {
    if (contains(NAT64, address)) return this.#mayConnectInner(address, address.subarray(12, 16))
    if (contains(SIX_TO_FOUR, address)) return this.#mayConnectInner(address, address.subarray(2, 6))
    return this.#mayConnectPlain(address)
  }

  #mayConnectInner(address: Uint8Array, four: Uint8Array): boolean {
    const inner = parseAddress(four.join('.'))
    return this.#mayConnectPlain(address) && this.#mayConnectPlain(inner)
  }

  /** Whether a rule names this address to deny it: the one thing that can keep two boxes of a network apart. */
  denies(address: Uint8Array): boolean {
    return this.#deny.everything || anyContains(this.#deny.blocks, address) || this.#anyTied(this.#deny, address, true)
  }

  #mayConnectPlain(address: Uint8Array): boolean {
    if (this.denies(address)) return false
    const special = SPECIAL.find(block => contains(block, address))
    if (special !== undefined) return this.#names(address, special.bits)
    if (this.#isOwn(address)) return this.#names(address, 128)
    return (
      this.#allow.everything || anyContains(this.#allow.blocks, address) || this.#anyTied(this.#allow, address, false)
    )
  }

  /** Whether a rule allows a block around `address` that is no wider than `bits`. */
  #names(address: Uint8Array, bits: number): boolean {
    return this.#allow.blocks.some(block => block.bits >= bits && contains(block, address))
  }

  #isOwn(address: Uint8Array): boolean {
    const now = this.#clock()
    if (now - this.#ownReadAt > OWN_ADDRESSES_MS) {
      this.#ownReadAt = now
      this.#own = Object.values(networkInterfaces())
        .flatMap(list => list ?? [])
        .map(({ address: text }) => parseAddress(text.replace(/%.*$/, '')))
    }
    return this.#own.some(own => own.every((byte, i) => byte === address[i]))
  }
}
