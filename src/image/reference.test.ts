import { describe, expect, it } from 'vitest'
import { familiarName, formatReference, parseReference } from './reference.ts'

const HEX = 'a'.repeat(64)

describe('references', () => {
  // The examples of Docker's documentation and of the distribution project's own tests.
  it.each([
    ['debian', 'docker.io/library/debian:latest', 'debian:latest'],
    ['debian:12', 'docker.io/library/debian:12', 'debian:12'],
    ['library/debian', 'docker.io/library/debian:latest', 'debian:latest'],
    ['user/app', 'docker.io/user/app:latest', 'user/app:latest'],
    ['docker.io/user/app:v1.2_3-x', 'docker.io/user/app:v1.2_3-x', 'user/app:v1.2_3-x'],
    ['index.docker.io/redis', 'docker.io/library/redis:latest', 'redis:latest'],
    ['ghcr.io/a/b/c:x', 'ghcr.io/a/b/c:x', 'ghcr.io/a/b/c:x'],
    ['localhost/app', 'localhost/app:latest', 'localhost/app:latest'],
    ['localhost:5000/app:1', 'localhost:5000/app:1', 'localhost:5000/app:1'],
    ['127.0.0.1:5000/a', '127.0.0.1:5000/a:latest', '127.0.0.1:5000/a:latest'],
    ['[::1]:5000/a', '[::1]:5000/a:latest', '[::1]:5000/a:latest'],
    [`debian@sha256:${HEX}`, `docker.io/library/debian@sha256:${HEX}`, `debian@sha256:${HEX}`],
    [`debian:12@sha256:${HEX}`, `docker.io/library/debian:12@sha256:${HEX}`, `debian:12@sha256:${HEX}`],
    ['a__b/c-d.e_f', 'docker.io/a__b/c-d.e_f:latest', 'a__b/c-d.e_f:latest'],
    ['Example.com/a', 'Example.com/a:latest', 'Example.com/a:latest'],
  ])('%s is %s', (text, full, familiar) => {
    const reference = parseReference(text)
    expect(formatReference(reference)).toBe(full)
    expect(familiarName(reference)).toBe(familiar)
    expect(parseReference(full)).toEqual(reference)
    expect(parseReference(familiar)).toEqual(reference)
  })

  it.each([
    '',
    ' ',
    ':tag',
    'Debian',
    'a//b',
    '/a',
    'a/',
    'a:',
    'a:b:c',
    'a:-tag',
    `a:${'t'.repeat(129)}`,
    'a@sha256:123',
    `a@md5:${HEX}`,
    `a@sha256:${HEX.toUpperCase()}`,
    '-a',
    'a-',
    'a..b',
    'a___b',
    'a b',
    'a/../b',
    'https://docker.io/debian',
    'a\n',
    'exa_mple.com/a',
    `${'a'.repeat(130)}/${'b'.repeat(130)}`,
  ])('refuses %j', text => {
    expect(() => parseReference(text)).toThrow(expect.objectContaining({ code: 'BAD_REFERENCE' }))
  })

  it('gives a reference that reads back the same, or a typed error, for any text', () => {
    let state = 1
    const random = (below: number): number => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0
      return Math.floor((state / 2 ** 32) * below)
    }
    const pieces = [
      'a',
      'b1',
      '.',
      '/',
      ':',
      '@',
      '-',
      '_',
      '__',
      'sha256:',
      HEX,
      'localhost',
      '127.0.0.1',
      ':5000',
      'A',
      ' ',
      '[::1]',
      '\u00e9',
      '..',
      'library',
    ]
    let parsed = 0
    for (let round = 0; round < 20_000; round++) {
      const text = Array.from({ length: 1 + random(7) }, () => pieces[random(pieces.length)]!).join('')
      try {
        const reference = parseReference(text)
        parsed++
        expect(parseReference(formatReference(reference))).toEqual(reference)
        expect(formatReference(reference)).not.toMatch(/\.\.\/|\/\.\.|\s/)
      } catch (error) {
        expect(error, text).toMatchObject({ code: 'BAD_REFERENCE' })
      }
    }
    expect(parsed).toBeGreaterThan(1000)
  })
})
