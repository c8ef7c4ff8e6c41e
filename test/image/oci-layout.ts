/** Writes OCI layouts by hand, good and damaged ones. */
import { createHash } from 'node:crypto'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { run } from './oracles.ts'

export const sha256 = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`

export interface BlobDescriptor {
  readonly mediaType: string
  readonly digest: string
  readonly size: number
}

export type LayerCompression = 'gzip' | 'zstd' | 'none'

const LAYER_TYPES: Record<LayerCompression, string> = {
  gzip: 'application/vnd.oci.image.layer.v1.tar+gzip',
  zstd: 'application/vnd.oci.image.layer.v1.tar+zstd',
  none: 'application/vnd.oci.image.layer.v1.tar',
}

export class OciLayout {
  readonly path: string
  readonly #manifests: object[] = []

  constructor(path: string) {
    this.path = path
    mkdirSync(join(path, 'blobs', 'sha256'), { recursive: true })
    writeFileSync(join(path, 'oci-layout'), '{"imageLayoutVersion":"1.0.0"}')
  }

  blob(bytes: Uint8Array, mediaType: string): BlobDescriptor {
    const digest = sha256(bytes)
    writeFileSync(this.blobPath(digest), bytes)
    return { mediaType, digest, size: bytes.length }
  }

  blobPath(digest: string): string {
    return join(this.path, 'blobs', digest.replace(':', '/'))
  }

  json(value: unknown, mediaType: string): BlobDescriptor {
    return this.blob(Buffer.from(JSON.stringify(value)), mediaType)
  }

  /** Adds an image of uncompressed tars under a tag. */
  image(
    tag: string,
    tars: readonly Buffer[],
    { compression = 'gzip', config = {} }: { compression?: LayerCompression; config?: object } = {},
  ): BlobDescriptor {
    const layers = tars.map(tar => this.blob(compress(tar, compression), LAYER_TYPES[compression]))
    const configBlob = this.json(
      {
        architecture: 'amd64',
        os: 'linux',
        config,
        rootfs: { type: 'layers', diff_ids: tars.map(sha256) },
        history: tars.map(() => ({ created_by: 'test' })),
      },
      'application/vnd.oci.image.config.v1+json',
    )
    const manifest = this.json(
      { schemaVersion: 2, mediaType: 'application/vnd.oci.image.manifest.v1+json', config: configBlob, layers },
      'application/vnd.oci.image.manifest.v1+json',
    )
    this.tag(manifest, tag)
    return manifest
  }

  tag(descriptor: object, tag: string): void {
    this.#manifests.push({ ...descriptor, annotations: { 'org.opencontainers.image.ref.name': tag } })
    writeFileSync(join(this.path, 'index.json'), JSON.stringify({ schemaVersion: 2, manifests: this.#manifests }))
  }
}

export function compress(bytes: Buffer, compression: LayerCompression): Buffer {
  if (compression === 'gzip') return gzipSync(bytes)
  if (compression === 'none') return bytes
  return Buffer.from(run('zstd', ['-q', '-c'], bytes), 'latin1')
}
