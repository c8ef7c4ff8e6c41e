/** What a chain shows at an offset, found without reading data. */
import type { BlockImage } from './block-image.ts'

export interface ChainExtent {
  readonly length: number
  /** How many backing files down the answer was found; for nothing anywhere, the last image that reaches this far. */
  readonly depth: number
  /** False when no image of the chain says anything here. */
  readonly present: boolean
  readonly zero: boolean
  readonly compressed: boolean
  /** Where the bytes are in the file of that image; -1 when they are nowhere as they are. */
  readonly hostOffset: number
}

export function chainExtent(image: BlockImage, offset: number, length: number): ChainExtent {
  let layer = image
  let most = length
  for (let depth = 0; ; depth++) {
    const extent = layer.extent(offset, most)
    if (extent.kind !== 'hole') {
      return {
        length: extent.length,
        depth,
        present: true,
        zero: extent.kind === 'zero',
        compressed: extent.kind === 'compressed',
        hostOffset: extent.hostOffset,
      }
    }
    most = extent.length
    const below = layer.backing
    // A backing file that ends before here is as good as none.
    if (!below || offset >= below.sizeBytes) {
      return {
        length: most,
        depth,
        present: false,
        zero: true,
        compressed: false,
        hostOffset: -1,
      }
    }
    most = Math.min(most, below.sizeBytes - offset)
    layer = below
  }
}

/** The image and those below it, top first. */
export function chainOf(image: BlockImage): BlockImage[] {
  const chain: BlockImage[] = []
  for (let layer: BlockImage | undefined = image; layer; layer = layer.backing) chain.push(layer)
  return chain
}
