/** koffi, loaded by its first use. Only libc.ts uses it. */
import { createRequire } from 'node:module'
import { assetPath } from './assets.ts'

type Koffi = typeof import('koffi')

/**
 * Every thread that loads koffi gets a stack and a heap for its calls, and koffi 3.3 does not give them back when the thread ends: with its
 * 3 MiB, a host with huge pages loses one or two MiB a thread. Nothing that we call needs more than this.
 */
const SIZES = { sync_stack_size: 128 * 1024, sync_heap_size: 64 * 1024 }

let loaded: Koffi | undefined
let library: ReturnType<Koffi['load']> | undefined

/**
 * koffi's native part, where its package is known, without the JavaScript before it that looks for it: a quarter of the time. Elsewhere, or when that
 * fails (another libc), as its own loader does it.
 */
function load(): Koffi {
  const require = createRequire(assetPath('package.json'))
  if (process.platform === 'linux') {
    try {
      return require(`@koromix/koffi-linux-${process.arch}/linux_${process.arch}/koffi.node`) as Koffi
    } catch {
      // Said by the other way, if that fails too.
    }
  }
  return (require('koffi') as { default: Koffi }).default
}

export function koffi(): Koffi {
  if (!loaded) {
    loaded = load()
    loaded.config(SIZES)
  }
  return loaded
}

/** Everything that is linked into this process. */
export function libc(): ReturnType<Koffi['load']> {
  library ??= koffi().load(null)
  return library
}
