/** The sizes that follow from a header, worked out once. */
import type { Header } from './header.ts'
import { MAX_PIECE_BYTES } from './table-cache.ts'

export interface Geometry {
  readonly clusterBits: number
  readonly clusterSize: number
  /** L2 entries in a table, and in the piece of it that is cached at once. */
  readonly l2Entries: number
  readonly l2PieceEntries: number
  readonly pieceBytes: number
  readonly refcountBits: number
  /** Clusters that one refcount block describes, and one cached piece of it. */
  readonly blockEntries: number
  readonly blockPieceEntries: number
  /** Where the compressed length starts in a compressed entry's upper half ("Compressed Clusters Descriptor"). */
  readonly compressedShift: number
}

export function geometryOf(header: Pick<Header, 'clusterBits' | 'refcountOrder'>): Geometry {
  const clusterSize = 2 ** header.clusterBits
  const pieceBytes = Math.min(clusterSize, MAX_PIECE_BYTES)
  const refcountBits = 2 ** header.refcountOrder
  return {
    clusterBits: header.clusterBits,
    clusterSize,
    l2Entries: clusterSize / 8,
    l2PieceEntries: pieceBytes / 8,
    pieceBytes,
    refcountBits,
    blockEntries: (clusterSize * 8) / refcountBits,
    blockPieceEntries: (pieceBytes * 8) / refcountBits,
    compressedShift: 62 - (header.clusterBits - 8) - 32,
  }
}
