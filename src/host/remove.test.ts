import { existsSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { removeFile, removeFolder } from './remove.ts'

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'vitrine-remove-'))
})
afterEach(() => rmSync(folder, { recursive: true, force: true }))

it('removes files, those that are not there as well, and no folder by mistake', () => {
  const file = join(folder, 'file')
  writeFileSync(file, 'x')
  removeFile(file)
  expect(existsSync(file)).toBe(false)
  removeFile(file)
  removeFile(join(folder, 'absent', 'file'))
  expect(() => removeFile(folder)).toThrow()
  expect(existsSync(folder)).toBe(true)
})

it('removes a folder with all that is in it, and nothing that links in it lead to', () => {
  const kept = join(folder, 'kept')
  const gone = join(folder, 'gone')
  mkdirSync(join(gone, 'a', 'b'), { recursive: true })
  mkdirSync(kept)
  writeFileSync(join(kept, 'file'), 'x')
  writeFileSync(join(gone, 'a', 'b', 'file'), 'x')
  symlinkSync(kept, join(gone, 'link'))
  removeFolder(gone)
  removeFolder(gone)
  expect(existsSync(gone)).toBe(false)
  expect(existsSync(join(kept, 'file'))).toBe(true)
})
