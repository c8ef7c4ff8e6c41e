import { describe, expect, it } from 'vitest'
import { formatAddress, parseAddress } from './addresses.ts'
import type { NetworkPolicy } from './description.ts'
import { NetError } from './errors.ts'
import { Policy } from './policy.ts'

let now = 0
const policyOf = (policy: NetworkPolicy): Policy => new Policy(policy, () => now)
const may = (policy: Policy, address: string): boolean => policy.mayConnect(parseAddress(address))

describe('the rules of a network', () => {
  it('allows the public internet, and nothing private, by default', () => {
    const full = policyOf('full')
    for (const address of ['93.184.216.34', '8.8.8.8', '2001:4860:4860::8888']) expect(may(full, address)).toBe(true)
    for (const address of [
      ...['127.0.0.1', '10.1.2.3', '172.16.0.1', '172.31.255.255', '192.168.1.1', '169.254.169.254', '100.64.0.1'],
      ...['0.0.0.0', '255.255.255.255', '224.0.0.1', '::1', '::', 'fe80::1', 'fd00::1', 'ff02::1', '::ffff:127.0.0.1'],
      // Documentation, relays, discards, segment routing, site-local.
      ...[
        '192.0.2.1',
        '198.51.100.1',
        '203.0.113.1',
        '192.88.99.1',
        '2001:db8::1',
        '3fff::1',
        '100::1',
        '5f00::1',
        'fec0::1',
      ],
      // The same by the back door: translators, 6to4, and the deprecated compatible form.
      ...['64:ff9b::127.0.0.1', '64:ff9b::10.0.0.1', '2002:7f00:1::', '2002:a00:1::1', '::10.0.0.1'],
      ...['::ffff:0:127.0.0.1', '2001:0:a00:1::1'],
    ]) {
      expect([address, may(full, address)]).toEqual([address, false])
    }
    expect([full.host, full.mayResolve('example.org')]).toEqual([false, true])
  })

  it('allows nothing at all with none', () => {
    const none = policyOf('none')
    expect([may(none, '8.8.8.8'), none.mayResolve('example.org'), none.host]).toEqual([false, false, false])
  })

  it('opens private blocks that are named, and denies what is denied', () => {
    const rules = policyOf({ allow: ['*', '10.1.0.0/16', 'fd00::/8'], deny: ['10.1.9.0/24', '8.8.8.8'] })
    expect(['10.1.2.3', '10.2.0.1', '10.1.9.9', '8.8.8.8', '8.8.4.4', 'fd12::1'].map(a => may(rules, a))).toEqual([
      ...[true, false, false, false, true, true],
    ])
  })

  it('ties names to the addresses that were answered, for as long as the answer lives and a while', () => {
    now = 0
    const rules = policyOf({ allow: ['example.org', '*.example.net'] })
    expect(rules.mayResolve('example.org')).toBe(true)
    expect(rules.mayResolve('www.example.net')).toBe(true)
    expect(rules.mayResolve('example.net')).toBe(false)
    expect(rules.mayResolve('evilexample.org')).toBe(false)
    expect(may(rules, '93.184.216.34')).toBe(false)
    rules.tie(['example.org'], parseAddress('93.184.216.34'), 30)
    expect(may(rules, '93.184.216.34')).toBe(true)
    // A name that leads to a private address opens nothing.
    rules.tie(['www.example.net'], parseAddress('192.168.0.1'), 30)
    expect(may(rules, '192.168.0.1')).toBe(false)
    now = 91_000
    expect(may(rules, '93.184.216.34')).toBe(false)
  })

  it('denies by name what was answered for that name', () => {
    const rules = policyOf({ deny: ['*.ads.example'] })
    rules.tie(['x.ads.example'], parseAddress('93.184.216.34'), 30)
    expect([may(rules, '93.184.216.34'), rules.mayResolve('x.ads.example')]).toEqual([false, false])
    expect(rules.mayResolve('example.org')).toBe(true)
  })

  it('denies by an alias that an answer went through, and allows by none', () => {
    now = 0
    const address = parseAddress('93.184.216.34')
    const denying = policyOf({ deny: ['*.ads.example'] })
    denying.tie(['www.example.org', 'x.ads.example'], address, 30)
    expect(denying.mayConnect(address)).toBe(false)
    const allowing = policyOf({ allow: ['good.example'] })
    allowing.tie(['bad.example', 'good.example'], address, 30)
    expect(allowing.mayConnect(address)).toBe(false)
    allowing.tie(['good.example'], address, 30)
    allowing.tie(['bad.example', 'good.example'], address, 30)
    expect(allowing.mayConnect(address)).toBe(true)
  })

  it('opens no special address by a block that is wider than its own', () => {
    const wide = policyOf({ allow: ['0.0.0.0/0', '::/0'] })
    for (const address of ['8.8.8.8', '2001:4860:4860::8888'])
      expect([address, may(wide, address)]).toEqual([address, true])
    for (const address of [
      '127.0.0.1',
      '169.254.169.254',
      '10.0.0.1',
      '::1',
      'fe80::1',
      'fd00::1',
      '64:ff9b::10.0.0.1',
    ])
      expect([address, may(wide, address)]).toEqual([address, false])
    const most = policyOf({ allow: ['128.0.0.0/1', '168.0.0.0/5'] })
    expect(['169.254.169.254', '192.168.0.1', '172.16.0.1', '193.0.0.1'].map(a => may(most, a))).toEqual([
      ...[false, false, false, true],
    ])
    const named = policyOf({ allow: ['127.0.0.0/8', '169.254.169.254', '::1', '0.0.0.0/0'] })
    expect(['127.0.0.1', '169.254.169.254', '169.254.1.1', '::1'].map(a => may(named, a))).toEqual([
      true,
      true,
      false,
      true,
    ])
    // All of IPv6 is nothing of IPv4.
    const six = policyOf({ allow: ['::/0'] })
    expect([may(six, '8.8.8.8'), may(six, '127.0.0.1'), may(six, '2001:4860:4860::8888')]).toEqual([false, false, true])
  })

  it('lets no question leave that only addresses are allowed for', () => {
    const rules = policyOf({ allow: ['93.184.216.0/24'] })
    expect([rules.mayResolve('secret.tunnel.example'), may(rules, '93.184.216.34')]).toEqual([false, true])
    expect(policyOf({ allow: ['93.184.216.0/24', 'example.org'] }).mayResolve('example.org')).toBe(true)
    expect(policyOf({ allow: ['93.184.216.0/24', '*'] }).mayResolve('example.org')).toBe(true)
  })

  it('changes while it runs, and not when the new rules are wrong', () => {
    const rules = policyOf('full')
    expect(() => rules.change({ allow: ['10.0.0.0/33'] })).toThrow(NetError)
    expect(may(rules, '8.8.8.8')).toBe(true)
    rules.change({ allow: ['host.vitrine.internal'] })
    expect([may(rules, '8.8.8.8'), rules.host]).toEqual([false, true])
    for (const rule of ['', 'a b', '*.', 'ex*mple.org', '1.2.3', '1.2.3.4/x', 'fe80::1/129', '-x.org']) {
      expect(() => policyOf({ deny: [rule] }), rule).toThrow(/rule/)
    }
  })

  it('reads and writes addresses', () => {
    for (const text of ['1.2.3.4', '::', '::1', 'fe80::1', '2001:db8::1:0:0:1', '1:2:3:4:5:6:7:8', 'fd00::']) {
      expect(formatAddress(parseAddress(text))).toBe(text)
    }
    expect(formatAddress(parseAddress('::ffff:1.2.3.4'))).toBe('1.2.3.4')
    for (const text of ['1.2.3', '1.2.3.4.5', ':::', 'fe80::1%eth0', 'x'])
      expect(() => parseAddress(text)).toThrow(NetError)
  })
})
