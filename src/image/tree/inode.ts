/**
 * A merged file system tree in memory: what the layers of an image add up to, without the contents of its files, which
 * stay in the tar or directory they come from until the ext4 writer copies them.
 *
 * Names, link targets and attribute names are bytes, not text: they are kept as strings with one character a byte
 * (Node's 'latin1'), so that they can be map keys and nothing is lost for names that are not UTF-8.
 */
export type InodeKind = 'directory' | 'file' | 'symlink' | 'character' | 'block' | 'fifo' | 'socket'

/** Where the bytes of regular files are: an archive that is open anyway, or a file that is opened for the copy. */
export interface ContentSource {
  /** A descriptor to read from, and `release` when done with it. */
  acquire(): number
  release(fd: number): void
  /** For messages. */
  readonly name: string
}

/** A few bytes that are in memory. */
export interface InlineContent {
  readonly bytes: Uint8Array
}

export interface StoredContent {
  readonly source: ContentSource
  /** Where the data starts in the source. */
  readonly offset: number
  /**
   * For a sparse file: triples (offset in the file, length, offset in the source after `offset`), ascending; what they leave
   * out is a hole. Absent: the whole file is in the source, in one piece.
   */
  readonly map?: Float64Array
}

export type FileContent = StoredContent | InlineContent

/** One inode; several directory entries may share it (hard links). */
export interface Inode {
  kind: InodeKind
  /** The twelve permission bits. */
  mode: number
  uid: number
  gid: number
  /** Seconds since 1970 (may be negative) and nanoseconds after them. */
  mtime: number
  mtimeNs: number
  xattrs: Map<string, Uint8Array> | undefined
  /** Of a regular file, in bytes. */
  size: number
  content: FileContent | undefined
  /** Of a symbolic link. */
  target: string
  major: number
  minor: number
  /** Of a directory. */
  children: Map<string, Inode> | undefined
}

export function newInode(kind: InodeKind, mode: number): Inode {
  return {
    kind,
    mode,
    uid: 0,
    gid: 0,
    mtime: 0,
    mtimeNs: 0,
    xattrs: undefined,
    size: 0,
    content: undefined,
    target: '',
    major: 0,
    minor: 0,
    children: kind === 'directory' ? new Map() : undefined,
  }
}

export const bytesOf = (byteString: string): Buffer => Buffer.from(byteString, 'latin1')
/** UTF-8 text as a byte string. */
export const byteString = (text: string): string => Buffer.from(text, 'utf8').toString('latin1')
/** A byte string as text, for people to read. */
export const textOf = (bytes: string): string => Buffer.from(bytes, 'latin1').toString('utf8')
