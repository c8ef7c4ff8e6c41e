import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { ensureInitramfs } from './initramfs.ts'

const home = mkdtempSync(join(tmpdir(), 'vitrine-initramfs-'))
afterAll(() => rmSync(home, { recursive: true }))

const modules = join(home, 'modules')
function compile(name: string): void {
  mkdirSync(join(modules, 'kernel'), { recursive: true })
  const source = join(home, 'module.c')
  writeFileSync(source, `__attribute__((section(".modinfo"),used)) static const char m[] = "name=${name}";`)
  execFileSync('gcc', ['-c', '-o', join(modules, 'kernel', `${name}.ko`), source])
}

describe('the initramfs of boxes', () => {
  const folder = join(home, 'kernels', 'initramfs')
  const archives = (): string[] => readdirSync(folder).filter(name => name.endsWith('.cpio'))
  const listed = (path: string): string =>
    execFileSync('sh', ['-c', `cpio -t --quiet < '${path}'`], { encoding: 'utf8' })

  it('is made once, made again when it is gone, and another when its modules change', () => {
    compile('one')
    const options = { modules, load: ['one'] }
    const path = ensureInitramfs(options, home)
    expect(listed(path)).toMatch(/^init$[\s\S]*^lib\/modules\/one\.ko$[\s\S]*^lib\/modules\/load-order$/m)
    // Made once: what stands in the file is not looked at again.
    writeFileSync(path, 'as it was left')
    expect(ensureInitramfs(options, home)).toBe(path)
    expect(readFileSync(path, 'utf8')).toBe('as it was left')
    rmSync(path)
    expect(ensureInitramfs(options, home)).toBe(path)
    expect(listed(path)).toContain('one.ko')
    compile('two')
    utimesSync(modules, new Date(), new Date(Date.now() + 5000))
    const other = ensureInitramfs({ modules, load: ['one', 'two'] }, home)
    expect(listed(other)).toContain('two.ko')
    expect(archives()).toHaveLength(2)
  })

  it('is made anew where the caller adds something', () => {
    const files = { 'etc/motd': { content: new TextEncoder().encode('hello') } }
    expect(listed(ensureInitramfs({ files }, home))).toContain('etc/motd')
    expect(listed(ensureInitramfs({}, home))).not.toContain('etc/motd')
  })

  it('says what is missing when a kernel has no modules', () => {
    expect(() => ensureInitramfs({ modules: join(home, 'nowhere') }, home)).toThrow(
      expect.objectContaining({ code: 'NO_MODULE' }),
    )
  })

  it('survives a note that makes no sense', () => {
    for (const name of readdirSync(folder)) if (name.endsWith('.made')) writeFileSync(join(folder, name), '../../x')
    expect(listed(ensureInitramfs({}, home))).toContain('init')
  })
})
