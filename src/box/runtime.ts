/**
 * A home with its settings. Most programs use the default one through `Box`'s static methods; a program that wants its
 * own home, limits or image sources makes one.
 */
import { Home } from './home.ts'
import { Networks } from './networks.ts'
import type { BoxOptions } from './options.ts'
import type { ProgressListener } from './prepare.ts'

/** Where a runtime keeps things, and what new boxes are by default. */
export interface RuntimeOptions {
  /** The home directory: `VITRINE_HOME`, else `~/.vitrine`. */
  readonly home?: string
  /** Taken where `Box.create` is told nothing. */
  readonly defaults?: Pick<BoxOptions, 'image' | 'cpus' | 'memoryMib' | 'diskGib' | 'accel' | 'network'>
  /** Hears of long work: downloads, image builds, boots. */
  readonly onProgress?: ProgressListener
}

/** A home directory with its boxes, images, kernels and networks, and the settings for new boxes. */
export class Runtime {
  readonly home: Home
  readonly defaults: NonNullable<RuntimeOptions['defaults']>
  readonly onProgress: ProgressListener
  /** Networks that boxes can be in together. */
  readonly networks: Networks

  constructor(options: RuntimeOptions = {}) {
    this.home = new Home(options.home)
    this.networks = new Networks(this.home)
    this.defaults = options.defaults ?? {}
    this.onProgress = options.onProgress ?? (() => {})
  }
}

let shared: Runtime | undefined

/** The runtime of the default home; made when it is first needed. */
export function defaultRuntime(): Runtime {
  shared ??= new Runtime()
  return shared
}
