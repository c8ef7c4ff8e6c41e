/**
 * Settings of registries from the environment, for those who do not set them in code:
 *
 *   VITRINE_MIRRORS   docker.io=https://mirror.example,ghcr.io=https://other.example
 *   VITRINE_INSECURE  registry.lan:5000,10.0.0.7:5000
 */
import { ImageError } from '../errors.ts'
import type { RegistryOptions } from './client.ts'

export function registrySettings(environment: NodeJS.ProcessEnv): Pick<RegistryOptions, 'mirrors' | 'insecure'> {
  const mirrors: Record<string, string[]> = {}
  for (const pair of listOf(environment.VITRINE_MIRRORS)) {
    const [registry, address, ...more] = pair.split('=')
    if (!registry || !address || more.length > 0) {
      throw new ImageError('BAD_REFERENCE', `VITRINE_MIRRORS: '${pair}' is not of the form registry=https://mirror`)
    }
    mirrors[registry] = [...(mirrors[registry] ?? []), address]
  }
  return { mirrors, insecure: listOf(environment.VITRINE_INSECURE) }
}

const listOf = (text: string | undefined): string[] =>
  (text ?? '')
    .split(',')
    .map(part => part.trim())
    .filter(part => part !== '')
