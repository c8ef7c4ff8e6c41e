/** The options that `run` and `create` share: what a box is to be. */
import { readFileSync } from 'node:fs'
import type { BoxOptions } from '../box/options.ts'
import type { PortMapping } from '../box/record.ts'
import { type OptionSpec, type ParsedArgs, UsageError } from './command.ts'

export const BOX_OPTIONS: Readonly<Record<string, OptionSpec>> = {
  name: { type: 'string', value: 'NAME', help: 'A name for the box, unique in its home.' },
  env: {
    type: 'string',
    short: 'e',
    multiple: true,
    value: 'NAME=VALUE',
    help: 'An environment variable (NAME alone: as it is here).',
  },
  'env-file': {
    type: 'string',
    multiple: true,
    value: 'FILE',
    help: 'Environment variables from a file, one a line.',
  },
  workdir: { type: 'string', short: 'w', value: 'PATH', help: 'Where commands start.' },
  user: {
    type: 'string',
    short: 'u',
    value: 'USER',
    help: 'Who commands run as: name or number, with :group if wanted.',
  },
  entrypoint: { type: 'string', value: 'PROGRAM', help: "Instead of the image's entrypoint and command." },
  cpus: { type: 'string', value: 'N', help: 'Virtual CPUs (1).' },
  memory: { type: 'string', short: 'm', value: 'SIZE', help: 'Memory, as in 512M or 2G (512M).' },
  disk: { type: 'string', value: 'GIB', help: 'Size of the disk in GiB (10); space is taken as it is written.' },
  publish: {
    type: 'string',
    short: 'p',
    multiple: true,
    value: 'HOST:GUEST',
    help: 'Forward ports, as in 8080:80, 0:80 (any free one), 8000-8009:80-89 or 127.0.0.1:5353:53/udp.',
  },
  network: { type: 'string', value: 'full|none', help: "What the box may reach ('full')." },
  allow: { type: 'string', multiple: true, value: 'RULE', help: 'Allow only these hosts, addresses or networks.' },
  deny: { type: 'string', multiple: true, value: 'RULE', help: 'Deny these.' },
  join: {
    type: 'string',
    multiple: true,
    value: 'NETWORK',
    help: "A network ('vitrine network') whose boxes reach each other by name.",
  },
  'max-up': {
    type: 'string',
    value: 'RATE',
    help: 'The most that the box may send, in bytes a second, as in 500K or 2M.',
  },
  'max-down': { type: 'string', value: 'RATE', help: 'The most that it may receive.' },
  pcap: { type: 'string', value: 'FILE', help: 'Record all that the box sends and receives, for tshark.' },
  accel: { type: 'string', value: 'NAME', help: 'kvm, soft, or auto: the best that works here.' },
  timeout: { type: 'string', value: 'TIME', help: 'Stop the box this long after its start, as in 30s or 2h.' },
  idle: { type: 'string', value: 'TIME', help: 'Stop the box after this long without use.' },
  'idle-pause': { type: 'boolean', help: 'With --idle: pause it instead, its memory on disk, until it is used.' },
  cold: { type: 'boolean', help: 'Boot the guest, even where a template could be used.' },
}

/** The variables of `--env-file` and `--env`; the latter win. */
export function environment(args: ParsedArgs): Record<string, string> {
  const env: Record<string, string> = {}
  for (const item of [...args.all('env-file').flatMap(linesOf), ...args.all('env')]) {
    const at = item.indexOf('=')
    if (at === 0) throw new UsageError(`'${item}' is no environment variable: write NAME=VALUE`)
    const name = at < 0 ? item : item.slice(0, at)
    const value = at < 0 ? process.env[name] : item.slice(at + 1)
    if (value !== undefined) env[name] = value
  }
  return env
}

/** Lines without a comment in front; as in Docker, quotes are part of the value. */
function linesOf(file: string): string[] {
  let text: string
  try {
    text = readFileSync(file, 'utf8')
  } catch (error) {
    throw new UsageError(`--env-file ${file} cannot be read (${(error as NodeJS.ErrnoException).code})`)
  }
  return text
    .split(/\r?\n/)
    .map(line => line.trimStart())
    .filter(line => line !== '' && !line.startsWith('#'))
}

/** `[ADDRESS:]HOST[-LAST]:GUEST[-LAST][/PROTOCOL]`. */
export function parsePort(text: string): PortMapping {
  const match = /^(?:(\[[0-9a-f:]+\]|[\d.]+):)?(\d+)(?:-(\d+))?:(\d+)(?:-(\d+))?(?:\/(tcp|udp))?$/i.exec(text)
  if (!match)
    throw new UsageError(`'${text}' is no port mapping: write HOST:GUEST, as in 8080:80, 0:80 or 127.0.0.1:5353:53/udp`)
  const [, bind, host, hostLast, guest, guestLast, protocol] = match
  const count = (first: string, last: string | undefined): number => Number(last ?? first) - Number(first) + 1
  const range = count(guest!, guestLast)
  // Of host port 0 there are as many as are needed.
  if (range < 1 || (host !== '0' && count(host!, hostLast) !== range))
    throw new UsageError(`the ranges of '${text}' have different lengths: write them as in 8000-8009:80-89`)
  return {
    host: Number(host),
    guest: Number(guest),
    ...(range === 1 ? {} : { range }),
    protocol: protocol?.toLowerCase() === 'udp' ? 'udp' : 'tcp',
    ...(bind === undefined ? {} : { bind: bind.replace(/^\[|\]$/g, '') }),
  }
}

function accelerator(text: string | undefined): BoxOptions['accel'] {
  if (text === undefined || text === 'auto' || text === 'kvm' || text === 'hvf' || text === 'soft') return text
  throw new UsageError(`there is no accelerator '${text}': kvm, hvf, soft or auto`)
}

/** Empty, as Docker has it: none, not even the image's. */
function entrypoint(text: string | undefined): BoxOptions['entrypoint'] {
  return text === undefined ? undefined : text === '' ? [] : [text]
}

export function bandwidth(args: ParsedArgs): BoxOptions['bandwidth'] {
  const [fromGuest, toGuest] = [args.rate('max-up'), args.rate('max-down')]
  if (fromGuest === undefined && toGuest === undefined) return undefined
  return { ...(fromGuest === undefined ? {} : { fromGuest }), ...(toGuest === undefined ? {} : { toGuest }) }
}

export function network(args: ParsedArgs): BoxOptions['network'] {
  const [allow, deny, mode] = [args.all('allow'), args.all('deny'), args.text('network')]
  if (mode !== undefined && mode !== 'full' && mode !== 'none') throw new UsageError("--network is 'full' or 'none'")
  if (allow.length === 0 && deny.length === 0) return mode
  return { ...(allow.length > 0 ? { allow } : {}), ...(deny.length > 0 ? { deny } : {}) }
}

/** Without those that were not given, so that defaults apply. */
function given<T extends object>(options: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>
  }
}

export function boxOptions(args: ParsedArgs, image: string | undefined): BoxOptions {
  return given({
    image,
    name: args.text('name'),
    env: environment(args),
    entrypoint: entrypoint(args.text('entrypoint')),
    workdir: args.text('workdir'),
    user: args.text('user'),
    cpus: args.number('cpus'),
    memoryMib: args.mebibytes('memory'),
    diskGib: args.number('disk'),
    ports: args.all('publish').map(parsePort),
    network: network(args),
    networks: args.all('join'),
    bandwidth: bandwidth(args),
    pcap: args.text('pcap'),
    accel: accelerator(args.text('accel')),
    timeoutMs: args.duration('timeout'),
    idleMs: args.duration('idle'),
    onIdle: args.flag('idle-pause') ? ('pause' as const) : undefined,
    template: args.flag('cold') ? false : undefined,
  }) as BoxOptions
}
