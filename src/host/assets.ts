/** Where the built files are (bundles, WebAssembly, guest programs), whether we run from src/ or from dist/. */
import { fileURLToPath } from 'node:url'

const DIST = import.meta.url.endsWith('.ts') ? new URL('../../dist/', import.meta.url) : new URL('./', import.meta.url)

/** The URL of a file below dist/, for example `assetUrl('vcpu.worker.cjs')`. */
export const assetUrl = (path: string): URL => new URL(path, DIST)

/** The path of a file below dist/. */
export const assetPath = (path: string): string => fileURLToPath(assetUrl(path))
