/** Unpacks a Debian package (deb(5)): by dpkg-deb where there is one, else by ourselves. */
import { createHash } from 'node:crypto'
import { createReadStream, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { compressionOf, decompress } from '../../machine/boot/decompress/decompress.ts'
import { KernelError } from './errors.ts'
import { runTool } from './run-tool.ts'

const MAX_UNPACKED = 1024 * 1024 * 1024
const TAR_BLOCK = 512

export async function unpackDeb(deb: string, target: string): Promise<void> {
  try {
    await runTool('dpkg-deb', ['-x', deb, target], { package: 'dpkg', code: 'BAD_PACKAGE' })
  } catch (error) {
    if (!(error instanceof KernelError) || error.code !== 'NO_TOOL') throw error
    unpackDebOurselves(readFileSync(deb), target)
  }
}

export async function sha256OfFile(path: string): Promise<string> {
  const hash = createHash('sha256')
  for await (const chunk of createReadStream(path)) hash.update(chunk as Buffer)
  return hash.digest('hex')
}

const bad = (what: string): KernelError =>
  new KernelError('BAD_PACKAGE', `the package is damaged: ${what}. Try again, it is fetched anew`)

/** Regular files and folders only: all that is needed of a kernel package. */
export function unpackDebOurselves(deb: Uint8Array, target: string): void {
  const member = findArMember(deb, 'data.tar')
  const kind = compressionOf(member)
  const tar = kind ? decompress(kind, member, MAX_UNPACKED) : member
  for (const { name, content } of tarFiles(tar)) {
    const path = normalize(name)
    if (path.startsWith('..') || path.startsWith('/')) throw bad(`it has a file '${name}' outside its folder`)
    mkdirSync(dirname(join(target, path)), { recursive: true })
    writeFileSync(join(target, path), content)
  }
}

/** ar(5): a magic line, then members with a header of 60 characters each. */
function findArMember(archive: Uint8Array, prefix: string): Uint8Array {
  const text = (from: number, to: number): string => Buffer.from(archive.subarray(from, to)).toString('latin1')
  if (text(0, 8) !== '!<arch>\n') throw bad('it is not an ar archive')
  for (let at = 8; at + 60 <= archive.length; ) {
    const size = Number(text(at + 48, at + 58).trim())
    if (!Number.isSafeInteger(size) || size < 0 || at + 60 + size > archive.length) throw bad('it is cut short')
    if (text(at, at + 16).startsWith(prefix)) return archive.subarray(at + 60, at + 60 + size)
    at += 60 + size + (size & 1)
  }
  throw bad(`it has no ${prefix}`)
}

/** POSIX ustar with GNU long names. */
function* tarFiles(tar: Uint8Array): Generator<{ name: string; content: Uint8Array }> {
  const text = (from: number, length: number): string => {
    const field = tar.subarray(from, from + length)
    const end = field.indexOf(0)
    return Buffer.from(end < 0 ? field : field.subarray(0, end)).toString()
  }
  let longName: string | undefined
  for (let at = 0; at + TAR_BLOCK <= tar.length && tar[at] !== 0; ) {
    const size = Number.parseInt(text(at + 124, 12).trim() || '0', 8)
    const start = at + TAR_BLOCK
    if (!Number.isSafeInteger(size) || start + size > tar.length) throw bad('its tar is cut short')
    const type = String.fromCharCode(tar[at + 156]!)
    const content = tar.subarray(start, start + size)
    const prefix = text(at + 257, 5) === 'ustar' ? text(at + 345, 155) : ''
    const name = longName ?? (prefix && text(at + 257, 8) !== 'ustar  ' ? `${prefix}/` : '') + text(at, 100)
    longName = undefined
    if (type === 'L') longName = Buffer.from(content).toString().replace(/\0.*$/s, '')
    else if (type === '0' || type === '\0') yield { name, content }
    at = start + Math.ceil(size / TAR_BLOCK) * TAR_BLOCK
  }
}
