/** What a manifest says of a layer's file: enough to know it again, and to notice that it is not what it was. */

export interface LayerRef {
  /** Its name in the store's folder of layers: `<id>.mem`, `<id>.qcow2` or `<id>.code`. */
  readonly file: string
  /** The file's length. */
  readonly bytes: number
  /** Memory: the checksum of the index. Otherwise: the checksum of the contents. */
  readonly sum: string
  /** Size, time and inode when it was written. */
  readonly stamp: string
}

/** What a CPU made of the guest's code, for those that go on from the snapshot on the same build: without it they only start slower. */
export interface CodeRef extends LayerRef {
  readonly build: string
}

export const LAYER_FILE = /^[0-9a-f]{12}\.(mem|qcow2|code)$/
