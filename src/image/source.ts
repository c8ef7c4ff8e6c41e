/**
 * What a user means by an image:
 *
 *   base                        the built-in one
 *   debian:12, ghcr.io/a/b@...  a name in a registry
 *   ./rootfs, dir:/path         a directory: a root file system, or an OCI layout if it has the file oci-layout
 *   ./image.tar, tar:/path      an archive: `docker save`, a tarred OCI layout, or a root file system
 *   oci:/path[:tag]             an OCI layout with several images in it
 */
import { existsSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { ImageError } from './errors.ts'
import { familiarName, formatReference, parseReference, type Reference } from './reference.ts'

export type ImageSource =
  | { readonly kind: 'base'; readonly key: string; readonly name: string }
  | { readonly kind: 'registry'; readonly key: string; readonly name: string; readonly reference: Reference }
  | {
      readonly kind: 'directory' | 'layout' | 'archive'
      readonly key: string
      readonly name: string
      readonly path: string
      readonly tag: string | undefined
    }

const SCHEME = /^(oci|dir|tar|docker-archive):(.+)$/s

export function parseSource(text: string): ImageSource {
  if (text === 'base') return { kind: 'base', key: 'base', name: 'base' }
  const [, scheme, rest] = SCHEME.exec(text) ?? []
  // `oci:tag` could be an image called oci; a path has a slash or a dot in front.
  if (scheme !== undefined && rest !== undefined && (scheme !== 'tar' || /[/.~]/.test(rest)))
    return localSource(rest, scheme)
  if (/^(?:\.{1,2}(?:\/|$)|\/|~\/)/.test(text)) return localSource(text, undefined)
  const reference = parseReference(text)
  return { kind: 'registry', key: formatReference(reference), name: familiarName(reference), reference }
}

function localSource(text: string, scheme: string | undefined): ImageSource {
  let path = expand(text)
  let tag: string | undefined
  if (scheme === 'oci' || scheme === 'docker-archive') {
    // A tag may have colons of its own (`name:tag`): the path is the shortest part that is there.
    for (let colon = text.indexOf(':'); colon > 0 && !existsSync(path); colon = text.indexOf(':', colon + 1)) {
      if (!existsSync(expand(text.slice(0, colon)))) continue
      path = expand(text.slice(0, colon))
      tag = text.slice(colon + 1)
    }
  }
  const stat = statSync(path, { throwIfNoEntry: false })
  if (!stat) throw new ImageError('NOT_FOUND', `there is nothing at ${path}: check the path`)
  const name = tag === undefined ? path : `${path}:${tag}`
  if (!stat.isDirectory()) return { kind: 'archive', key: `archive:${name}`, name, path, tag }
  const isLayout = scheme !== 'dir' && existsSync(join(path, 'oci-layout'))
  if (scheme === 'oci' && !isLayout) {
    throw new ImageError('CORRUPT', `${path} is not an OCI layout: it has no file oci-layout`)
  }
  return {
    kind: isLayout ? 'layout' : 'directory',
    key: `${isLayout ? 'layout' : 'directory'}:${name}`,
    name,
    path,
    tag,
  }
}

const expand = (path: string): string => resolve(path.startsWith('~/') ? join(homedir(), path.slice(2)) : path)
