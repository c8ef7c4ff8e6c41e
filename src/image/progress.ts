/** What happens while an image is fetched and built, as events: the CLI draws bars from them. */
export type LayerPhase = 'download' | 'unpack'

/** A step on the way from a name to a disk. */
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

/** A line of text for people, with bytes done and expected where they are known. */
export interface Progress {
  readonly text: string
  readonly done?: number
  readonly total?: number
}

/** Makes lines of an image's events; bytes add up over the layers that are on their way. */
export class ProgressSummary {
  readonly #image: string
  readonly #layers = {
    download: new Map<string, readonly [done: number, total: number]>(),
    unpack: new Map<string, readonly [number, number]>(),
  }

  constructor(image: string) {
    this.#image = image
  }

  /** What is to be shown after this event; undefined: what was. */
  add(event: ImageProgress): Progress | undefined {
    const line = (what: string, done?: number, total?: number): Progress => ({
      text: `${this.#image}: ${what}`,
      ...(done === undefined || total === undefined ? {} : { done, total }),
    })
    switch (event.type) {
      case 'resolve':
        return line('looking it up')
      case 'wait':
        return line('another process prepares it')
      case 'retry':
        return line(`trying again (${event.reason})`)
      case 'disk':
        return line('writing the disk', event.done, event.total)
      case 'done':
        return undefined
      case 'layer':
        return this.#layer(event, line)
    }
  }

  #layer(
    { phase, digest, done, total }: ImageProgress & { type: 'layer' },
    line: (what: string, done: number, total: number) => Progress,
  ): Progress | undefined {
    const layers = this.#layers[phase]
    layers.set(digest, [done, total])
    // A download still going on says more than what is unpacked meanwhile.
    const isFetching = [...this.#layers.download.values()].some(([fetched, of]) => fetched < of)
    if (phase === 'unpack' && isFetching) return undefined
    const sum = (index: 0 | 1): number => [...layers.values()].reduce((all, pair) => all + pair[index], 0)
    const what = phase === 'download' ? 'fetching' : 'unpacking'
    return line(`${what} ${layers.size} layer${layers.size === 1 ? '' : 's'}`, sum(0), sum(1))
  }
}
