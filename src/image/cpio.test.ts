/** Our newc archives, as cpio reads them. */
import { execFileSync } from 'node:child_process'
import { lstatSync, mkdtempSync, readFileSync, readlinkSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { CpioWriter } from './cpio.ts'
import { buildInitramfs } from './initramfs.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-cpio-'))
afterAll(() => rmSync(folder, { recursive: true }))

describe('newc archives', () => {
  it('are listed and unpacked by cpio', () => {
    const archive = new CpioWriter()
    const odd = Uint8Array.from({ length: 4097 }, (_, i) => i * 7)
    archive.file('a/b/c.bin', odd, 0o640)
    archive.file('empty', new Uint8Array(0), 0o755)
    archive.symlink('a/link', 'b/c.bin')
    archive.directory('a/b')
    archive.file('a/näme', new TextEncoder().encode('x'))
    const bytes = archive.finish()
    const list = execFileSync('cpio', ['-it', '--quiet'], { input: bytes, encoding: 'utf8' })
    expect(list.trim().split('\n')).toHaveLength(6)
    expect(list).toContain('a/b/c.bin')
    execFileSync('cpio', ['-id', '--quiet', '--no-absolute-filenames'], { input: bytes, cwd: folder })
    expect(Buffer.compare(readFileSync(join(folder, 'a/b/c.bin')), odd)).toBe(0)
    expect(lstatSync(join(folder, 'a/b/c.bin')).mode & 0o7777).toBe(0o640)
    expect(lstatSync(join(folder, 'empty')).size).toBe(0)
    expect(readlinkSync(join(folder, 'a/link'))).toBe('b/c.bin')
    expect(readFileSync(join(folder, 'a/näme'), 'utf8')).toBe('x')
  })

  it('refuse paths that the kernel would put elsewhere', () => {
    expect(() => new CpioWriter().file('/etc/passwd', new Uint8Array(0))).toThrow(/no archive path/)
    expect(() => new CpioWriter().file('', new Uint8Array(0))).toThrow(/no archive path/)
  })

  it('make an initramfs with a console, an init and an order of modules', () => {
    const init = new TextEncoder().encode('#!/bin/sh\n')
    const bytes = buildInitramfs({ init, files: { '/etc/motd': { content: new TextEncoder().encode('hi') } } })
    const list = execFileSync('cpio', ['-itv', '--quiet'], { input: bytes, encoding: 'utf8' })
    expect(list).toMatch(/crw-------.* 5, +1 .*dev\/console/)
    expect(list).toMatch(/-rwxr-xr-x.* init/)
    expect(list).toMatch(/etc\/motd/)
    expect(list).toMatch(/lib\/modules\/load-order/)
  })
})
