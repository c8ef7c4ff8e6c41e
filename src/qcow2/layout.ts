/** The numbers of the format, in file order. Section names are those of QEMU's docs/interop/qcow2.txt. */

/** "Header": byte offsets of the fields. All integers are big-endian. */
export const HEADER = {
  magic: 0,
  version: 4,
  backingFileOffset: 8,
  backingFileSize: 16,
  clusterBits: 20,
  size: 24,
  cryptMethod: 32,
  l1Size: 36,
  l1TableOffset: 40,
  refcountTableOffset: 48,
  refcountTableClusters: 56,
  nbSnapshots: 60,
  snapshotsOffset: 64,
  /** Version 2 ends here. */
  incompatibleFeatures: 72,
  compatibleFeatures: 80,
  autoclearFeatures: 88,
  refcountOrder: 96,
  headerLength: 100,
  compressionType: 104,
} as const

export const MAGIC = 0x514649fb
export const V2_HEADER_BYTES = 72
export const V3_HEADER_BYTES = 104
/** What we write: version 3 with the compression type and its padding. */
export const V3_FULL_HEADER_BYTES = 112
/** The first sector holds every field that we ever change in place, so that one sector write changes it atomically. */
export const SECTOR = 512

/** Incompatible features: an unknown one forbids opening. */
export const INCOMPAT_DIRTY = 1
export const INCOMPAT_CORRUPT = 2
export const INCOMPAT_DATA_FILE = 4
export const INCOMPAT_COMPRESSION = 8
export const INCOMPAT_EXTENDED_L2 = 16
/** Compatible features. */
export const COMPAT_LAZY_REFCOUNTS = 1
/** Autoclear features: cleared by a writer that does not keep what they promise. */
export const AUTOCLEAR_BITMAPS = 1

/** Header extensions. */
export const EXTENSION_END = 0
export const EXTENSION_BACKING_FORMAT = 0xe2792aca
export const EXTENSION_FEATURE_NAMES = 0x6803f857
export const EXTENSION_BITMAPS = 0x23852875
export const EXTENSION_LUKS = 0x0537be77
export const EXTENSION_DATA_FILE = 0x44415441

export const MIN_CLUSTER_BITS = 9
export const MAX_CLUSTER_BITS = 21
export const DEFAULT_CLUSTER_BITS = 16
export const MAX_REFCOUNT_ORDER = 6
export const DEFAULT_REFCOUNT_ORDER = 4

/** The limits that QEMU sets itself; they bound what a hostile header can make us allocate. */
export const MAX_L1_BYTES = 32 * 1024 * 1024
export const MAX_REFCOUNT_TABLE_BYTES = 8 * 1024 * 1024
export const MAX_SNAPSHOTS = 65536
export const MAX_SNAPSHOT_TABLE_BYTES = 64 * 1024 * 1024
export const MAX_BACKING_NAME_BYTES = 1023
/** A file offset or size has to be an exact JavaScript number. */
export const MAX_OFFSET = Number.MAX_SAFE_INTEGER

/**
 * "Cluster mapping": table entries are 64 bits, read as two 32-bit halves.
 * Standard: bit 63 COPIED, 62 compressed, 55-9 host offset, 0 reads-as-zeros (version 3).
 */
export const HI_COPIED = 0x80000000
export const HI_COMPRESSED = 0x40000000
export const HI_OFFSET = 0x00ffffff
export const LO_OFFSET = 0xfffffe00
export const LO_ZERO = 1
export const TWO_32 = 0x1_0000_0000

/** Compression types of the header. */
export const COMPRESSION_ZLIB = 0
export const COMPRESSION_ZSTD = 1
