/** A digest of a tree that was read from a directory: names, kinds, attributes, sizes and times, not the contents themselves. */
import { createHash } from 'node:crypto'
import type { Inode } from './inode.ts'

export function identityOfTree(root: Inode): string {
  const hash = createHash('sha256')
  const numbers = new Map<Inode, number>()
  const visit = (name: string, inode: Inode): void => {
    const seen = numbers.get(inode)
    if (seen !== undefined) {
      hash.update(`${JSON.stringify(name)} = ${seen}\n`)
      return
    }
    numbers.set(inode, numbers.size)
    const { kind, mode, uid, gid, mtime, mtimeNs, size, target, major, minor } = inode
    hash.update(`${JSON.stringify([name, kind, mode, uid, gid, mtime, mtimeNs, size, target, major, minor])}\n`)
    for (const [key, value] of [...(inode.xattrs ?? [])].sort(([a], [b]) => (a < b ? -1 : 1))) {
      hash.update(`${JSON.stringify(key)} ${Buffer.from(value).toString('hex')}\n`)
    }
    for (const child of [...(inode.children?.keys() ?? [])].sort()) visit(child, inode.children!.get(child)!)
    if (inode.children) hash.update('.\n')
  }
  visit('', root)
  return `sha256:${hash.digest('hex')}`
}
