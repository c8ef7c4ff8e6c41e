/**
 * From a layer's blob to a tar that can be read at any position: decompressed into a spool file, with the digest of the
 * uncompressed bytes computed on the way. Gzip and Zstandard are told by their first bytes, as registries' media types lie.
 */
import { createHash } from 'node:crypto'
import { closeSync, createReadStream, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { pipeline, Transform, type TransformCallback } from 'node:stream'
import * as zlib from 'node:zlib'
import { Decompress } from 'fzstd'
import { ImageError, rethrowWrite } from './errors.ts'
import { readFully } from './read-fully.ts'

const CHUNK = 1 << 18

export interface SpoolOptions {
  /** More uncompressed bytes than this are refused: a small file can expand to fill any disk. */
  readonly limitBytes: number
  /** For messages. */
  readonly name: string
  /** Called with the bytes of the blob that are done. */
  readonly onProgress?: (doneBytes: number, totalBytes: number) => void
}

export interface SpooledTar {
  /** The blob itself when it was not compressed, else the spool file. */
  readonly path: string
  /** `sha256:` of the uncompressed bytes: the layer's diff id. */
  readonly diffId: string
  readonly bytes: number
}

type Compression = 'gzip' | 'zstd' | 'none'

export function compressionOf(path: string): Compression {
  const fd = openSync(path, 'r')
  try {
    const magic = Buffer.alloc(4)
    readFully(fd, magic, 0)
    if (magic[0] === 0x1f && magic[1] === 0x8b) return 'gzip'
    // A skippable frame (0x184D2A5?) may come first.
    const word = magic.readUInt32LE(0)
    if (word === 0xfd2fb528 || (word & 0xfffffff0) >>> 0 === 0x184d2a50) return 'zstd'
    if (magic[0] === 0xfd && magic.toString('latin1', 1) === '7zX') {
      throw new ImageError(
        'UNSUPPORTED',
        `${path} is compressed with xz, which layers may not be: decompress it first (xz -d)`,
      )
    }
    return 'none'
  } finally {
    closeSync(fd)
  }
}

/** Decompresses `blob` to `spool`; on failure no spool is left. An uncompressed blob is only read. */
export async function spoolTar(blob: string, spool: string, options: SpoolOptions): Promise<SpooledTar> {
  const { limitBytes, name, onProgress } = options
  const compression = compressionOf(blob)
  const total = statSync(blob).size
  let read = 0
  const input = createReadStream(blob, { highWaterMark: CHUNK })
  input.on('data', chunk => {
    read += chunk.length
  })
  const decoder = decoderOf(compression)
  // Failures reach the reader of the last stream.
  const output = decoder ? pipeline(input, decoder, () => undefined) : input
  const hash = createHash('sha256')
  const fd = decoder ? openSync(spool, 'wx', 0o600) : -1
  let bytes = 0
  try {
    for await (const chunk of output as AsyncIterable<Buffer>) {
      bytes += chunk.length
      if (bytes > limitBytes) {
        throw new ImageError(
          'TOO_LARGE',
          `${name} holds more than the ${Math.floor(limitBytes / 2 ** 20)} MiB allowed: raise the limit if you trust it`,
        )
      }
      hash.update(chunk)
      if (fd >= 0) for (let done = 0; done < chunk.length; ) done += writeSync(fd, chunk, done)
      onProgress?.(read, total)
    }
    return { path: decoder ? spool : blob, diffId: `sha256:${hash.digest('hex')}`, bytes }
  } catch (error) {
    input.destroy()
    decoder?.destroy()
    if (fd >= 0) rmSync(spool, { force: true })
    const code = (error as NodeJS.ErrnoException).code ?? ''
    if (code.startsWith('Z_') || code === 'ZSTD') {
      const message = `${name} cannot be decompressed (${(error as Error).message}): it is damaged or truncated; fetch it again`
      throw new ImageError('BAD_COMPRESSION', message, { cause: error })
    }
    return rethrowWrite(error, spool)
  } finally {
    if (fd >= 0) closeSync(fd)
  }
}

function decoderOf(compression: Compression): Transform | undefined {
  if (compression === 'none') return undefined
  if (compression === 'gzip') return zlib.createGunzip({ chunkSize: CHUNK })
  return new ZstdTransform()
}

/** fzstd as a stream. It does not check content checksums: the digest of the layer does more. */
class ZstdTransform extends Transform {
  readonly #decoder: Decompress
  #ended = false

  constructor() {
    super({ readableHighWaterMark: 4 * CHUNK })
    this.#decoder = new Decompress((part, final) => {
      if (part.length > 0) this.push(Buffer.from(part.buffer, part.byteOffset, part.length))
      if (final) this.#ended = true
    })
  }

  override _transform(chunk: Buffer, _encoding: BufferEncoding, done: TransformCallback): void {
    this.#step(chunk, false, done)
  }

  override _flush(done: TransformCallback): void {
    this.#step(new Uint8Array(0), true, error => {
      if (error) done(error)
      else if (!this.#ended) done(Object.assign(new Error('unexpected end of file'), { code: 'ZSTD' }))
      else done()
    })
  }

  #step(chunk: Uint8Array, final: boolean, done: TransformCallback): void {
    try {
      this.#decoder.push(chunk, final)
    } catch (error) {
      done(Object.assign(new Error(error instanceof Error ? error.message : String(error)), { code: 'ZSTD' }))
      return
    }
    done()
  }
}
