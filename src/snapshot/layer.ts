/** What a manifest says of a layer's file: enough to know it again, and to notice that it is not what it was. */

export interface LayerRef {
  /** Its name in the store's folder of layers: `<id>.mem` or `<id>.qcow2`. */
  readonly file: string
  /** The file's length. */
  readonly bytes: number
  /** Memory: the checksum of the index. Disk: the checksum of the contents. */
  readonly sum: string
  /** Size, time and inode when it was written. */
  readonly stamp: string
}

export const LAYER_FILE = /^[0-9a-f]{12}\.(mem|qcow2)$/
