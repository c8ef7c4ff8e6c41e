/** Constants of the ext4 format (fs/ext4/ext4.h; Documentation/filesystems/ext4). One block size: 4 KiB. */

export const BLOCK = 4096
export const BLOCKS_PER_GROUP = BLOCK * 8
export const GROUP_BYTES = BLOCK * BLOCKS_PER_GROUP
export const INODE_SIZE = 256
export const INODES_PER_BLOCK = BLOCK / INODE_SIZE
/** How much of the 128 bytes after the classic inode its own fields take; in-inode attributes follow. */
export const EXTRA_ISIZE = 32
export const DESCRIPTOR_SIZE = 64
/** Groups whose bitmaps and inode tables lie together. */
export const LOG_GROUPS_PER_FLEX = 4
export const GROUPS_PER_FLEX = 1 << LOG_GROUPS_PER_FLEX

/**
 * Descriptor blocks set aside, used ones included: 64 groups each, so that the file system can grow online to 1 TiB
 * (EXT4_IOC_RESIZE_FS through the resize inode) without moving anything.
 */
export const DESCRIPTOR_BLOCKS = 128
export const MAX_GROUPS = (DESCRIPTOR_BLOCKS * BLOCK) / DESCRIPTOR_SIZE

export const JOURNAL_BLOCKS = 8192
export const JOURNAL_MAGIC = 0xc03b3998

export const INO_ROOT = 2
export const INO_RESIZE = 7
export const INO_JOURNAL = 8
export const INO_LOST_FOUND = 11
export const FIRST_FREE_INO = 12

export const FLAG_INDEX = 0x1000
export const FLAG_EXTENTS = 0x80000

export const GROUP_INODE_UNINIT = 1
export const GROUP_BLOCK_UNINIT = 2
export const GROUP_INODE_ZEROED = 4

/** has_journal, ext_attr, resize_inode, dir_index. */
export const COMPAT = 0x4 | 0x8 | 0x10 | 0x20
/** filetype, extents, 64bit, flex_bg. */
export const INCOMPAT = 0x2 | 0x40 | 0x80 | 0x200
/** sparse_super, large_file, huge_file, dir_nlink, extra_isize, metadata_csum. */
export const RO_COMPAT = 0x1 | 0x2 | 0x8 | 0x20 | 0x40 | 0x400

/** More links than this and a directory's count becomes 1, "unknown" (dir_nlink). */
export const MAX_LINKS = 65000
/** Extents longer than this mark unwritten blocks. */
export const MAX_EXTENT = 32768
/** The largest file: 2^32 blocks. */
export const MAX_FILE_BYTES = 0xffffffff * BLOCK

export const blocksFor = (bytes: number): number => Math.ceil(bytes / BLOCK)
