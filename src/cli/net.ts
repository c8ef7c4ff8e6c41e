/** What a running box's network does, and changing it: `net`, `port`; networks that boxes share: `network`. */
import { Box } from '../box/box.ts'
import type { NetworkFlow } from '../box/network.ts'
import { bandwidth, network, parsePort } from './box-options.ts'
import { cliRuntime } from './box-runtime.ts'
import { type Command, JSON_OPTION, type ParsedArgs, UsageError } from './command.ts'
import { formatAge, formatBytes, printJson, printTable } from './output.ts'

async function withBox(args: ParsedArgs, index: number, work: (box: Box) => Promise<void>): Promise<number> {
  const box = await Box.get(args.required(index, "the box's name"), cliRuntime().runtime)
  try {
    await work(box)
  } finally {
    box.close()
  }
  return 0
}

const endText = (address: string, port: number): string =>
  address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`

function printFlows(flows: readonly NetworkFlow[]): void {
  printTable(
    ['PROTOCOL', 'GUEST', 'REMOTE', 'STATE', 'SENT', 'RECEIVED', 'RESENT'],
    flows.map(flow => [
      flow.protocol,
      endText(flow.guest, flow.guestPort),
      endText(flow.remote, flow.remotePort),
      flow.state ?? '-',
      formatBytes(flow.bytesFromGuest),
      formatBytes(flow.bytesToGuest),
      String(flow.retransmits ?? '-'),
    ]),
  )
}

async function show(box: Box, json: boolean): Promise<void> {
  const { network: net } = box
  const [flows, counters, denials] = await Promise.all([net.flows(), net.counters(), net.denials()])
  if (json) {
    printJson({ flows, counters, denials, ports: await net.ports(), unixPorts: await net.unixPorts() })
    return
  }
  printFlows(flows)
  process.stdout.write('\n')
  printTable(
    ['COUNTER', 'VALUE'],
    Object.entries(counters)
      .filter(([, value]) => value > 0)
      .map(([name, value]) => [name, String(value)]),
  )
  if (denials.length === 0) return
  process.stdout.write('\n')
  printTable(
    ['DENIED', 'TO', 'TIMES', 'LAST'],
    denials.map(({ protocol, target, port, times, at }) => [
      protocol,
      port === 0 ? target : endText(target, port),
      String(times),
      formatAge(new Date(at)),
    ]),
  )
}

export const netCommand: Command = {
  name: 'net',
  summary: "Show a running box's network, or change it until the box stops.",
  usage: '[OPTIONS] BOX',
  options: {
    network: { type: 'string', value: 'full|none', help: 'From now on the box may reach everything, or nothing.' },
    allow: { type: 'string', multiple: true, value: 'RULE', help: 'From now on allow only these.' },
    deny: { type: 'string', multiple: true, value: 'RULE', help: 'From now on deny these.' },
    'max-up': { type: 'string', value: 'RATE', help: 'The most that the box may send, in bytes a second, as in 2M.' },
    'max-down': { type: 'string', value: 'RATE', help: 'The most that it may receive.' },
    'no-limit': { type: 'boolean', help: 'Take limits off.' },
    pcap: { type: 'string', value: 'FILE', help: 'Record all that the box sends and receives from now on.' },
    'end-pcap': { type: 'boolean', help: 'End the recording.' },
    json: JSON_OPTION,
  },
  examples: [
    'vitrine net web',
    'vitrine net --allow example.org --allow 10.1.0.0/16 web',
    'vitrine net --pcap web.pcap web',
  ],
  run: args =>
    withBox(args, 0, async box => {
      args.atMost(1)
      const [policy, limits, pcap] = [network(args), bandwidth(args), args.text('pcap')]
      const changes: (() => Promise<void>)[] = []
      if (policy !== undefined) changes.push(() => box.network.setPolicy(policy))
      if (limits !== undefined) changes.push(() => box.network.setBandwidth(limits))
      if (args.flag('no-limit')) changes.push(() => box.network.setBandwidth({}))
      if (pcap !== undefined) changes.push(() => box.network.record(pcap))
      if (args.flag('end-pcap')) changes.push(() => box.network.record(undefined))
      for (const change of changes) await change()
      if (changes.length === 0) await show(box, args.flag('json'))
    }),
}

export const portCommand: Command = {
  name: 'port',
  summary: 'List, open and close ports that lead into a running box.',
  usage: 'ls BOX   |   add BOX HOST:GUEST...   |   rm BOX HOST[/udp]...',
  options: { json: JSON_OPTION },
  examples: ['vitrine port ls web', 'vitrine port add web 8080:80 0:443', 'vitrine port rm web 8080'],
  run: args => {
    const action = args.required(0, 'what to do: ls, add or rm')
    const ports = args.positionals.slice(2)
    switch (action) {
      case 'ls':
        args.atMost(2)
        return withBox(args, 1, box => listPorts(box, args.flag('json')))
      case 'add':
        return withBox(args, 1, async box => {
          args.required(2, 'a port mapping such as 8080:80')
          for (const port of ports.map(parsePort)) {
            for (const { bind, host, guest, protocol } of await box.network.openPort(port))
              process.stdout.write(`${endText(bind, host)}:${guest}/${protocol}\n`)
          }
        })
      case 'rm':
        return withBox(args, 1, async box => {
          args.required(2, 'a host port')
          for (const [host, protocol] of ports.map(parseHostPort)) await box.network.closePort(host, protocol)
        })
      default:
        throw new UsageError(`'port' cannot '${action}': ls, add or rm`)
    }
  },
}

function parseHostPort(text: string): [number, 'tcp' | 'udp'] {
  const match = /^(\d+)(?:\/(tcp|udp))?$/.exec(text)
  if (!match) throw new UsageError(`'${text}' is no host port: write 8080 or 5353/udp`)
  return [Number(match[1]), match[2] === 'udp' ? 'udp' : 'tcp']
}

async function listPorts(box: Box, json: boolean): Promise<void> {
  const [ports, unix] = await Promise.all([box.network.ports(), box.network.unixPorts()])
  if (json) printJson([...ports, ...unix])
  else {
    printTable(
      ['HOST', 'GUEST', 'PROTOCOL'],
      [
        ...ports.map(({ bind, host, guest, protocol }) => [endText(bind, host), String(guest), protocol]),
        ...unix.map(({ path, guest }) => [path, String(guest), 'unix']),
      ],
    )
  }
}

export const networkCommand: Command = {
  name: 'network',
  summary: 'List, create and remove networks that boxes can share.',
  usage: 'ls   |   create NAME...   |   rm NAME...',
  options: { json: JSON_OPTION },
  examples: ['vitrine network create dev', 'vitrine run -d --name db --join dev postgres', 'vitrine network ls'],
  run: async args => {
    const { networks } = cliRuntime().runtime
    const action = args.required(0, 'what to do: ls, create or rm')
    const names = args.positionals.slice(1)
    if (action === 'ls') {
      args.atMost(1)
      if (args.flag('json')) printJson(networks.list())
      else {
        printTable(
          ['NAME', 'SUBNET', 'BOXES'],
          networks.list().map(({ name, subnet, members }) => [name, subnet, members.map(({ id }) => id).join(' ')]),
        )
      }
      return 0
    }
    if (action !== 'create' && action !== 'rm') throw new UsageError(`'network' cannot '${action}': ls, create or rm`)
    args.required(1, "the network's name")
    for (const name of names) {
      if (action === 'create') networks.create(name)
      else networks.remove(name)
      process.stdout.write(`${name}\n`)
    }
    return 0
  },
}
