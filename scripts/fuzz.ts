/**
 * Long random tests, each against something that nobody here wrote.
 *
 *   npm run fuzz -- TARGET [options]     `npm run fuzz` lists the targets
 *
 * A target is a module below test/ that exports `fuzz(args)` and resolves to true when nothing differed. Add a row for a new one.
 */
interface FuzzTarget {
  readonly what: string
  readonly usage: string
  readonly load: () => Promise<{ fuzz(args: readonly string[]): Promise<boolean> }>
}

const TARGETS: Readonly<Record<string, FuzzTarget>> = {
  cpu: {
    what: "the software CPU against this machine's processor, random instructions at CPL 3",
    usage: '[--seed N] [--count N] [--only FAMILY]... [--examples N] [--tier compiler]',
    load: () => import('../test/oracle/fuzz.ts'),
  },
  hostile: {
    what: 'the software CPU on random privileged code with damaged tables: it must neither crash nor leave RAM',
    usage: '[--seed N] [--seconds N]',
    load: () => import('../test/soft/fuzz.ts'),
  },
  soak: {
    what: 'a guest on the software CPU for an hour, under a load that changes: memory must not grow with time',
    usage: '[--seconds N]',
    load: () => import('../test/soft/soak.ts'),
  },
  kernel: {
    what: 'damaged ELF files, bzImages and compressed data: a kernel or a typed error, and what gzip, lz4, xz and zstd give',
    usage: '[--seed N] [--count N]',
    load: () => import('../test/boot/fuzz.ts'),
  },
  net: {
    what: 'the network on damaged frames of every protocol: it must neither throw nor open what is not allowed',
    usage: '[--seed N] [--count N]',
    load: () => import('../src/net/testing/fuzz.ts'),
  },
  snapshot: {
    what: 'exported snapshots, manifests, layers and file systems, damaged or forged: refused with a typed error, or whole',
    usage: '[--seed N] [--count N]',
    load: () => import('../test/snapshot/fuzz.ts'),
  },
  'snapshot-kill': {
    what: 'a store whose users are killed at random moments: every snapshot is absent or whole',
    usage: '[--seed N] [--count N]',
    load: () => import('../src/snapshot/testing/kills.ts'),
  },
  qcow2: {
    what: 'the QCOW2 engine: random operations judged by qemu-img, power cuts at every write, damaged images',
    usage: '[--seed N] [--count N] [--steps N]',
    load: () => import('../test/qcow2/fuzz.ts'),
  },
  virtio: {
    what: 'every virtio device against a driver that now and then breaks the rules',
    usage: '[--seed N] [--count N] [--steps N] [--only DEVICE]...',
    load: () => import('../test/virtio/fuzz.ts'),
  },
}

const [name, ...args] = process.argv.slice(2)
const target = name === undefined ? undefined : TARGETS[name]
if (!target) {
  if (name !== undefined) console.error(`fuzz: no target '${name}'`)
  console.error('usage: npm run fuzz -- TARGET [options]')
  for (const [each, { what, usage }] of Object.entries(TARGETS)) console.error(`  ${each} ${usage}\n      ${what}`)
  process.exit(2)
}
const { fuzz } = await target.load()
process.exit((await fuzz(args)) ? 0 : 1)
