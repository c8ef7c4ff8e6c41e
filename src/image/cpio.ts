/** The newc archive format, which the kernel unpacks its initramfs from: Documentation/driver-api/early-userspace/buffer-format.rst. */

const S_IFDIR = 0o040000
const S_IFREG = 0o100000
const S_IFLNK = 0o120000
const S_IFCHR = 0o020000
const TRAILER = 'TRAILER!!!'
const MAX_FILE = 0xffff_ffff

export class CpioWriter {
  readonly #parts: Uint8Array[] = []
  readonly #directories = new Set<string>()
  #length = 0
  #inode = 1

  /** With its parents, once. */
  directory(path: string, mode = 0o755): void {
    const parent = path.split('/').slice(0, -1).join('/')
    if (parent !== '') this.directory(parent)
    if (this.#directories.has(path)) return
    this.#directories.add(path)
    this.#entry(path, S_IFDIR | mode, new Uint8Array(0), 0, 0)
  }

  file(path: string, content: Uint8Array, mode = 0o644): void {
    if (content.length > MAX_FILE) throw new RangeError(`${path} is too large for a cpio archive`)
    this.#parent(path)
    this.#entry(path, S_IFREG | mode, content, 0, 0)
  }

  symlink(path: string, target: string): void {
    this.#parent(path)
    this.#entry(path, S_IFLNK | 0o777, new TextEncoder().encode(target), 0, 0)
  }

  characterDevice(path: string, major: number, minor: number, mode: number): void {
    this.#parent(path)
    this.#entry(path, S_IFCHR | mode, new Uint8Array(0), major, minor)
  }

  /** The archive, its trailer included. Nothing can be added afterwards. */
  finish(): Uint8Array {
    this.#inode = 0
    this.#entry(TRAILER, 0, new Uint8Array(0), 0, 0)
    const archive = new Uint8Array(this.#length)
    let at = 0
    for (const part of this.#parts) {
      archive.set(part, at)
      at += part.length
    }
    return archive
  }

  #parent(path: string): void {
    const parent = path.split('/').slice(0, -1).join('/')
    if (parent !== '') this.directory(parent)
  }

  #entry(path: string, mode: number, content: Uint8Array, major: number, minor: number): void {
    const name = new TextEncoder().encode(`${path}\0`)
    if (path === '' || path.startsWith('/') || path.includes('\0')) throw new RangeError(`'${path}' is no archive path`)
    const links = (mode & S_IFDIR) === S_IFDIR ? 2 : 1
    // Inode, mode, uid, gid, links, mtime, size, device, special device, name size, checksum: eight hex digits each.
    const fields = [this.#inode++, mode, 0, 0, links, 0, content.length, 0, 0, major, minor, name.length, 0]
    const header = `070701${fields.map(value => value.toString(16).toUpperCase().padStart(8, '0')).join('')}`
    this.#put(new TextEncoder().encode(header))
    this.#put(name)
    this.#align()
    this.#put(content)
    this.#align()
  }

  #put(bytes: Uint8Array): void {
    this.#parts.push(bytes)
    this.#length += bytes.length
  }

  #align(): void {
    if (this.#length % 4 !== 0) this.#put(new Uint8Array(4 - (this.#length % 4)))
  }
}
