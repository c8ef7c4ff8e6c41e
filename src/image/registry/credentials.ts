/** Credentials as Docker keeps them: config.json and its helper programs (docker-credential-*). */
import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { ImageError } from '../errors.ts'
import { DEFAULT_REGISTRY } from '../reference.ts'

export interface Credentials {
  readonly username: string
  readonly password: string
  /** An OAuth2 refresh token, in place of name and password. */
  readonly identityToken?: string
}

export type CredentialSource = (registry: string) => Promise<Credentials | undefined>

/** Docker Hub's credentials are stored under its first name. */
const HUB_KEY = 'https://index.docker.io/v1/'
const HELPER_TIMEOUT_MS = 30_000

interface DockerConfig {
  auths?: Record<string, { auth?: string; username?: string; password?: string; identitytoken?: string }>
  credHelpers?: Record<string, string>
  credsStore?: string
}

/** Looks in `$DOCKER_CONFIG/config.json`, else in ~/.docker/config.json. */
export function dockerCredentials(
  path = join(process.env.DOCKER_CONFIG ?? join(homedir(), '.docker'), 'config.json'),
): CredentialSource {
  let config: DockerConfig | undefined
  return async registry => {
    config ??= readConfig(path)
    const key = registry === DEFAULT_REGISTRY ? HUB_KEY : registry
    const helper = config.credHelpers?.[registry] ?? config.credHelpers?.[key] ?? config.credsStore
    if (helper) {
      const found = await askHelper(helper, key)
      if (found) return found
    }
    return fromAuths(config, registry, key, path)
  }
}

function readConfig(path: string): DockerConfig {
  let text: string
  try {
    text = readFileSync(path, 'utf8')
  } catch {
    return {}
  }
  try {
    const config: unknown = JSON.parse(text)
    return typeof config === 'object' && config !== null ? (config as DockerConfig) : {}
  } catch (error) {
    throw new ImageError('UNAUTHORIZED', `${path} is not JSON (${(error as Error).message}): mend it, or log in again`)
  }
}

function fromAuths(config: DockerConfig, registry: string, key: string, path: string): Credentials | undefined {
  // People and tools write the host, or a URL of it.
  const names = [
    key,
    registry,
    `https://${registry}`,
    `https://${registry}/`,
    `https://${registry}/v1/`,
    `https://${registry}/v2/`,
  ]
  const entry = names.map(name => config.auths?.[name]).find(found => found !== undefined)
  if (!entry) return undefined
  if (entry.identitytoken) return { username: '', password: '', identityToken: entry.identitytoken }
  if (entry.auth) {
    const [, username, password] = /^([^:]*):([\s\S]*)$/.exec(Buffer.from(entry.auth, 'base64').toString()) ?? []
    if (username === undefined || password === undefined) {
      throw new ImageError('UNAUTHORIZED', `the credentials for ${registry} in ${path} are damaged: log in again`)
    }
    return { username, password }
  }
  return entry.username ? { username: entry.username, password: entry.password ?? '' } : undefined
}

function askHelper(helper: string, key: string): Promise<Credentials | undefined> {
  if (!/^[\w.-]+$/.test(helper)) {
    throw new ImageError(
      'UNAUTHORIZED',
      `the credential helper '${helper}' in Docker's config.json is not a program's name`,
    )
  }
  const program = `docker-credential-${helper}`
  return new Promise((resolve, reject) => {
    const child = execFile(program, ['get'], { timeout: HELPER_TIMEOUT_MS }, (error, stdout) => {
      if (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') {
          reject(
            new ImageError(
              'MISSING_TOOL',
              `Docker's config.json names ${program}, which is not installed: install it, or remove it there`,
            ),
          )
        } else resolve(undefined) // The helper says "not found" by failing.
        return
      }
      try {
        const { Username, Secret } = JSON.parse(stdout) as { Username?: string; Secret?: string }
        if (typeof Secret !== 'string') resolve(undefined)
        else if (Username === '<token>') resolve({ username: '', password: '', identityToken: Secret })
        else resolve({ username: Username ?? '', password: Secret })
      } catch {
        reject(new ImageError('UNAUTHORIZED', `${program} answered with something that is not JSON`))
      }
    })
    child.stdin?.on('error', () => undefined)
    child.stdin?.end(key)
  })
}
