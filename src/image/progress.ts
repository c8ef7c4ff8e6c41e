/** What happens while an image is fetched and built, as events: the CLI draws bars from them. */
export type LayerPhase = 'download' | 'unpack'

export type ImageProgress =
  /** The registry is asked what the name means. */
  | { readonly type: 'resolve'; readonly image: string }
  /** Bytes of a layer's blob. `done` equals `total` at the end of each phase; a cached layer has no download. */
  | {
      readonly type: 'layer'
      readonly digest: string
      readonly phase: LayerPhase
      readonly done: number
      readonly total: number
    }
  /** Bytes of file content in the ext4 image. */
  | { readonly type: 'disk'; readonly done: number; readonly total: number }
  /** Another process fetches or builds the same thing. */
  | { readonly type: 'wait'; readonly what: string }
  | { readonly type: 'retry'; readonly what: string; readonly reason: string }
  | { readonly type: 'done'; readonly image: string; readonly id: string }

export type OnProgress = (event: ImageProgress) => void
