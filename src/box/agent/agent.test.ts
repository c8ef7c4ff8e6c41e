/** The agent, natively on this host behind a Unix socket, against its client. */
import { type ChildProcess, execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { createReadStream, existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startAgent } from '../testing/native-agent.ts'
import { AgentClient, type AgentProcess, type ExecRequest } from './client.ts'
import { AgentFiles, type FileEvent } from './files.ts'
import { Frame, PayloadWriter } from './protocol.ts'
import { copyIn, copyOut, tarIn, tarOut } from './tree.ts'

const folder = mkdtempSync(join(tmpdir(), 'vitrine-agent-'))
const socketPath = join(folder, 'agent.sock')
let agent: ChildProcess
let client: AgentClient
let files: AgentFiles

async function newClient(): Promise<AgentClient> {
  return AgentClient.connect(connect(socketPath))
}

async function output(process: AgentProcess): Promise<{ stdout: Buffer; stderr: Buffer }> {
  const collect = async (stream: AsyncIterable<Buffer>): Promise<Buffer> => {
    const chunks: Buffer[] = []
    for await (const chunk of stream) chunks.push(chunk)
    return Buffer.concat(chunks)
  }
  const [stdout, stderr] = await Promise.all([collect(process.stdout), collect(process.stderr)])
  return { stdout, stderr }
}

async function run(request: Partial<ExecRequest> & { argv: readonly string[] }, stdin?: string | Buffer) {
  const process = client.exec({ env: { PATH: '/usr/bin:/bin' }, ...request })
  process.stdin.end(stdin)
  const { stdout, stderr } = await output(process)
  return { ...(await process.exit), stdout: stdout.toString(), stderr: stderr.toString() }
}

const sh = (script: string, more: Partial<ExecRequest> = {}) => run({ argv: ['sh', '-c', script], ...more })

beforeAll(async () => {
  agent = await startAgent(socketPath)
  client = await newClient()
  files = new AgentFiles(client)
})

afterAll(() => {
  client.close()
  agent.kill('SIGKILL')
  rmSync(folder, { recursive: true })
})

describe('exec', () => {
  it('gives back output, errors and status apart', async () => {
    expect(await sh('echo out; echo err >&2; exit 3')).toMatchObject({
      stdout: 'out\n',
      stderr: 'err\n',
      exitCode: 3,
      signal: null,
    })
  })

  it('passes arguments, environment and directory as bytes', async () => {
    const odd = 'a b\n"\'$\\ü\u{1f600}'
    expect(await run({ argv: ['printf', '%s|', odd, ''] })).toMatchObject({ stdout: `${odd}||` })
    const result = await sh('printf %s "$GIVEN"; pwd; echo "$HOME"', { env: { GIVEN: odd }, cwd: '/usr' })
    expect(result.stdout).toBe(`${odd}/usr\n/root\n`)
  })

  it('runs as another user, by name and by number', async () => {
    expect((await sh('id -un; id -gn; pwd', { user: 'daemon', cwd: '/' })).stdout).toBe('daemon\ndaemon\n/\n')
    expect((await sh('id -u; id -g', { user: '1234:4321', cwd: '/' })).stdout).toBe('1234\n4321\n')
    await expect(sh('true', { user: 'nobody-here' })).rejects.toMatchObject({ code: 'EINVAL' })
  })

  it('says why something cannot be started', async () => {
    await expect(run({ argv: ['no-such-program'] })).rejects.toMatchObject({
      code: 'ENOENT',
      message: expect.stringContaining("'no-such-program'"),
    })
    await expect(run({ argv: ['/etc/passwd'] })).rejects.toMatchObject({ code: 'EACCES' })
    await expect(sh('true', { cwd: '/no/such/place' })).rejects.toMatchObject({
      code: 'ENOENT',
      message: expect.stringContaining('/no/such/place'),
    })
  })

  it('feeds standard input to its end', async () => {
    const data = randomBytes(3_000_000)
    const result = await run({ argv: ['sha256sum'] }, data)
    expect(result.stdout.slice(0, 64)).toBe(createHash('sha256').update(data).digest('hex'))
  })

  it('does not mind a process that never reads its input', async () => {
    expect(await run({ argv: ['true'] }, randomBytes(2_000_000))).toMatchObject({ exitCode: 0 })
  })

  it('loses nothing of a large output, and only as fast as it is read', async () => {
    const process = client.exec({ argv: ['sh', '-c', 'head -c 50000000 /dev/zero | tr "\\0" "x"'] })
    await process.started
    await sleep(100)
    let size = 0
    for await (const chunk of process.stdout as AsyncIterable<Buffer>) {
      expect(chunk.every(byte => byte === 0x78)).toBe(true)
      size += chunk.length
    }
    expect(size).toBe(50_000_000)
    expect(await process.exit).toMatchObject({ exitCode: 0 })
  })

  it('bounds what waits for a reader that does not read, and serves others meanwhile', async () => {
    const process = client.exec({ argv: ['sh', '-c', 'yes'] })
    await process.started
    expect(await sh('echo alive')).toMatchObject({ stdout: 'alive\n' })
    expect(process.stdout.readableLength).toBeLessThanOrEqual(256 * 1024)
    process.signal(15)
    process.stdout.resume()
    expect(await process.exit).toMatchObject({ signal: 15, exitCode: null })
  })

  it('reports signals and time-outs', async () => {
    expect(await sh('kill -9 $$')).toMatchObject({ signal: 9, exitCode: null })
    expect(await run({ argv: ['sleep', '60'], timeoutMs: 100 })).toMatchObject({ signal: 9, timedOut: true })
    const process = client.exec({ argv: ['sh', '-c', 'sleep 60 | cat'] })
    await process.started
    process.signal(2)
    expect(await process.exit).toMatchObject({ signal: 2 })
  })

  it('does not wait for children that a process leaves behind', async () => {
    expect(await sh('sleep 30 & echo started')).toMatchObject({ stdout: 'started\n', exitCode: 0 })
  })

  it('gives a terminal that can be resized', async () => {
    const process = client.exec({
      argv: ['sh', '-c', 'tty; stty size; read line; stty size; echo "got $line"'],
      env: { PATH: '/usr/bin:/bin' },
      tty: { rows: 24, columns: 80 },
    })
    let text = ''
    process.stdout.on('data', (chunk: Buffer) => {
      text += chunk.toString()
    })
    while (!text.includes('24 80')) await sleep(5)
    process.resize(50, 132)
    process.stdin.write('hello\n')
    expect(await process.exit).toMatchObject({ exitCode: 0 })
    await new Promise(resolve => (process.stdout.closed ? resolve(0) : process.stdout.once('close', resolve)))
    expect(text).toMatch(/^\/dev\/pts\/\d+\r\n24 80\r\n/)
    expect(text).toMatch(/50 132\r\ngot hello\r\n$/)
  })

  it('interrupts the foreground process of a terminal by Ctrl-C', async () => {
    const process = client.exec({ argv: ['sleep', '60'], tty: { rows: 24, columns: 80 } })
    await process.started
    await sleep(100)
    process.stdin.write('\x03')
    process.stdout.resume()
    expect(await process.exit).toMatchObject({ signal: 2 })
  })

  it('lets any user open its own standard streams, as pipes and as a terminal', async () => {
    const script = 'read line < /dev/stdin; echo "$line" > /dev/stdout; echo err > /dev/stderr'
    const request = { argv: ['sh', '-c', script], user: '1234:4321', cwd: '/' }
    expect(await run(request, 'in\n')).toMatchObject({ exitCode: 0, stdout: 'in\n', stderr: 'err\n' })
    const tty = await run({ ...request, tty: { rows: 24, columns: 80 } }, 'in\n')
    expect(tty).toMatchObject({ exitCode: 0, stdout: expect.stringMatching(/in\r\nerr\r\n$/) })
  })

  it('ends a terminal whose left-behind jobs write on', async () => {
    const script = "trap '' HUP; (while :; do echo x; sleep 0.02; done) & yes | head -c 300000; echo $!"
    const process = client.exec({ argv: ['sh', '-c', script], tty: { rows: 24, columns: 80 } })
    let text = ''
    process.stdout.on('data', (chunk: Buffer) => {
      text += chunk.toString()
    })
    expect(await process.exit).toMatchObject({ exitCode: 0 })
    const pid = Number(/(\d+)\r\n/.exec(text)?.[1])
    expect(pid).toBeGreaterThan(1)
    execFileSync('kill', ['-9', String(pid)])
  })

  it('runs 200 at once', async () => {
    // None ends before all have begun.
    const ready = join(folder, 'ready')
    execFileSync('mkdir', [ready])
    const wait = `while [ "$(ls ${ready} | wc -l)" -lt 200 ]; do sleep 0.2; done`
    const all = await Promise.all(
      Array.from({ length: 200 }, (_, i) => sh(`: > ${ready}/${i}; ${wait}; echo ${i}; exit ${i % 100}`)),
    )
    all.forEach((result, i) => {
      expect(result).toMatchObject({ stdout: `${i}\n`, exitCode: i % 100 })
    })
  })

  it('ends what a lost connection had started, unless it is to survive', async () => {
    const marker = join(folder, 'marker')
    const other = await newClient()
    const mortal = other.exec({ argv: ['sleep', '1000'] })
    const survivor = other.exec({ argv: ['sh', '-c', `sleep 0.3; echo done > ${marker}`], survives: true })
    const [{ pid }] = await Promise.all([mortal.started, survivor.started])
    other.close()
    await expect(mortal.exit).rejects.toMatchObject({ code: 'DISCONNECTED' })
    while (!existsSync(marker)) await sleep(20)
    expect(existsSync(`/proc/${pid}`)).toBe(false)
  })
})

describe('files', () => {
  const at = (name: string) => join(folder, name)

  it('writes, reads and replaces', async () => {
    const data = randomBytes(1_000_000)
    await files.write(at('deep/er/data.bin'), data, { mode: 0o600 })
    expect(statSync(at('deep/er/data.bin')).mode & 0o777).toBe(0o600)
    expect((await files.read(at('deep/er/data.bin'))).equals(data)).toBe(true)
    await files.write(at('deep/er/data.bin'), 'short')
    expect(await files.readText(at('deep/er/data.bin'))).toBe('short')
    expect(statSync(at('deep/er/data.bin')).mode & 0o777).toBe(0o600)
    await files.write(at('deep/er/data.bin'), '+more', { append: true })
    expect(readFileSync(at('deep/er/data.bin'), 'utf8')).toBe('short+more')
    await expect(files.write(at('deep/er/data.bin'), 'x', { exclusive: true })).rejects.toMatchObject({
      code: 'EEXIST',
    })
    const { stream, done } = files.readStream(at('deep/er/data.bin'), { offset: 5, length: 3 })
    const part: Buffer[] = []
    for await (const chunk of stream) part.push(chunk as Buffer)
    await done
    expect(Buffer.concat(part).toString()).toBe('+mo')
  })

  it('writes through a symbolic link, also one that leads nowhere yet', async () => {
    await files.write(at('links/target'), 'old', { mode: 0o640 })
    execFileSync('sh', ['-c', `cd ${at('links')} && ln -s target link && ln -s later dangling`])
    await files.write(at('links/link'), 'new')
    await files.write(at('links/dangling'), 'there now')
    expect(readFileSync(at('links/target'), 'utf8')).toBe('new')
    expect(statSync(at('links/target')).mode & 0o777).toBe(0o640)
    expect(readFileSync(at('links/later'), 'utf8')).toBe('there now')
    expect((await files.list(at('links'))).map(({ name, kind }) => `${name} ${kind}`)).toEqual([
      'dangling symlink',
      'later file',
      'link symlink',
      'target file',
    ])
    await files.write(at(`links/${'n'.repeat(255)}`), 'a name as long as can be')
  })

  it('fails the stream itself, so that it is not taken for complete', async () => {
    const read = files.readStream(at('no-such-file')).stream
    await expect(read.toArray()).rejects.toMatchObject({ code: 'ENOENT' })
    writeFileSync(at('in-the-way'), '')
    const write = files.writeStream(at('in-the-way/file')).stream
    const failed = new Promise(resolve => write.once('error', resolve))
    expect(await failed).toMatchObject({ code: 'ENOTDIR' })
  })

  it('gives up what a destroyed stream or a lost connection will not complete', async () => {
    const gone = async (pid: number) => {
      while (existsSync(`/proc/${pid}`)) await sleep(10)
    }
    const children = () =>
      execFileSync('sh', ['-c', `cat /proc/${agent.pid}/task/${agent.pid}/children`], { encoding: 'utf8' })
        .split(' ')
        .filter(Boolean)
        .map(Number)
    const ended = async (before: number[]) => {
      for (const pid of children()) if (!before.includes(pid)) await gone(pid)
    }
    await files.mkdir(at('given-up'))
    const before = children()
    const { stream, done } = files.writeStream(at('given-up/file'))
    stream.write('half')
    await files.exists('/')
    stream.destroy()
    await expect(done).rejects.toMatchObject({ code: 'CLOSED' })
    await ended(before)
    const other = await newClient()
    const lost = new AgentFiles(other).writeStream(at('given-up/file'))
    lost.stream.write('half')
    await files.exists('/')
    other.close()
    await expect(lost.done).rejects.toMatchObject({ code: 'DISCONNECTED' })
    await ended(before)
    expect(await files.list(at('given-up'))).toEqual([])
    const endless = files.readStream('/dev/zero')
    await new Promise(resolve => endless.stream.once('data', resolve))
    endless.stream.destroy()
    await expect(endless.done).rejects.toMatchObject({ code: 'CLOSED' })
    await ended(before)
  })

  it('lists, renames and removes', async () => {
    await files.mkdir(at('tree/a/b'))
    writeFileSync(at('tree/file'), 'x')
    execFileSync('ln', ['-s', 'file', at('tree/link')])
    const entries = await files.list(at('tree'))
    expect(entries.map(e => [e.name, e.kind, e.target])).toEqual([
      ['a', 'directory', undefined],
      ['file', 'file', undefined],
      ['link', 'symlink', 'file'],
    ])
    expect(await files.stat(at('tree/link'))).toMatchObject({ kind: 'file', size: 1 })
    expect(await files.stat(at('tree/link'), { follow: false })).toMatchObject({ kind: 'symlink' })
    await files.rename(at('tree/a'), at('tree/z'))
    await expect(files.remove(at('tree'))).rejects.toMatchObject({ code: 'ENOTEMPTY' })
    await files.remove(at('tree'), { recursive: true })
    expect(await files.exists(at('tree'))).toBe(false)
    await expect(files.read(at('tree'))).rejects.toMatchObject({
      code: 'ENOENT',
      message: expect.stringContaining('tree'),
    })
    await expect(files.stat('relative')).rejects.toMatchObject({ code: 'EINVAL' })
  })

  it('lists a directory of any size', async () => {
    await files.mkdir(at('large'))
    const names = Array.from({ length: 3000 }, (_, i) => `a-name-that-takes-some-room-${String(i).padStart(5, '0')}`)
    for (const name of names) writeFileSync(at(`large/${name}`), '')
    expect((await files.list(at('large'))).map(({ name }) => name)).toEqual(names)
    await expect(files.list(at('large/nothing'))).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('watches, into directories that appear later', async () => {
    await files.mkdir(at('watched'))
    const events: FileEvent[] = []
    const stop = await files.watch(at('watched'), event => events.push(event), { recursive: true })
    const seen = async (kind: string, path: string) => {
      while (!events.some(e => e.kind === kind && e.path === path)) await sleep(5)
    }
    writeFileSync(at('watched/one'), '1')
    await seen('changed', at('watched/one'))
    await files.mkdir(at('watched/new'))
    await seen('created', at('watched/new'))
    writeFileSync(at('watched/new/two'), '2')
    await seen('changed', at('watched/new/two'))
    rmSync(at('watched/one'))
    await seen('removed', at('watched/one'))
    // A renamed directory: events carry its new path, and what was in it at once is told of.
    execFileSync('sh', ['-c', `cd ${at('watched')} && mv new moved && mkdir -p x/y && echo > x/y/z`])
    await seen('created', at('watched/moved/two'))
    await seen('created', at('watched/x/y/z'))
    events.length = 0
    writeFileSync(at('watched/moved/three'), '3')
    await seen('changed', at('watched/moved/three'))
    expect(events.filter(({ path }) => path.includes('/new'))).toEqual([])
    stop()
    const other = await newClient()
    const end = new Promise(resolve => {
      void new AgentFiles(other).watch(at('watched'), () => {}, { onEnd: resolve }).then(() => other.close())
    })
    expect(await end).toMatchObject({ code: 'DISCONNECTED' })
    await expect(files.watch(at('absent'), () => {})).rejects.toMatchObject({ code: 'ENOENT' })
  })
})

describe('bad peers', () => {
  it('a host that breaks the protocol loses its connection, and only that', async () => {
    const bad = async (...chunks: Buffer[]) => {
      const socket = connect(socketPath)
      for (const chunk of chunks) socket.write(chunk)
      await new Promise(resolve => socket.once('close', resolve).resume().on('error', resolve))
    }
    const frame = (type: number, channel: number, payload: Buffer, length = payload.length) => {
      const header = Buffer.alloc(12)
      header.writeUInt32LE(length, 0)
      header.writeUInt32LE(channel, 4)
      header[8] = type
      return Buffer.concat([header, payload])
    }
    const hello = frame(Frame.HELLO, 0, new PayloadWriter().u32(1).finish())
    await bad(frame(Frame.INFO, 1, Buffer.alloc(0)))
    await bad(hello, frame(Frame.INFO, 1, Buffer.alloc(0), 0x7fff_ffff))
    await bad(
      hello,
      frame(
        Frame.EXEC,
        1,
        new PayloadWriter().u32(0).u32(0).u32(0).string('').string('').strings(['cat']).strings([]).finish(),
      ),
      ...Array.from({ length: 40 }, () => frame(Frame.DATA, 1, Buffer.alloc(65536))),
      frame(Frame.EXEC, 1, Buffer.alloc(0)),
    )
    expect(await sh('echo fine')).toMatchObject({ stdout: 'fine\n' })
  })

  it('survives random frames', async () => {
    for (let round = 0; round < 50; round++) {
      const socket = connect(socketPath)
      socket.on('error', () => {})
      const hello = Buffer.alloc(16)
      hello.writeUInt32LE(4, 0)
      hello[8] = Frame.HELLO
      hello.writeUInt32LE(1, 12)
      socket.write(hello)
      for (let i = 0; i < 20; i++) {
        const payload = randomBytes(Math.floor(Math.random() * 64))
        const header = Buffer.alloc(12)
        header.writeUInt32LE(payload.length, 0)
        header.writeUInt32LE(i % 5, 4)
        // Everything but the requests that act on the whole machine, which here is the test's host.
        header[8] = [2, 3, 4, 5, 6, 16, 17, 21, 32, 33, 90, 200][Math.floor(Math.random() * 12)]!
        header[9] = Math.floor(Math.random() * 4)
        socket.write(Buffer.concat([header, payload]))
      }
      socket.end()
      await new Promise(resolve => socket.resume().once('close', resolve))
    }
    expect(await sh('echo fine')).toMatchObject({ stdout: 'fine\n' })
  })
})

describe('trees', () => {
  const at = (name: string) => join(folder, name)
  const listing = (root: string) =>
    execFileSync(
      'sh',
      [
        '-c',
        `cd ${root} && find . -printf '%P %y %m %s %l %T@\\n' | sort && find . -type f -exec sha256sum {} + | sort`,
      ],
      {
        encoding: 'utf8',
      },
    )

  beforeAll(() => {
    execFileSync('sh', [
      '-c',
      `mkdir -p ${at('source')}/sub/deeper && cd ${at('source')} && echo one > sub/one && ln -s ../one sub/deeper/link &&
       head -c 700000 /dev/urandom > big && : > empty && chmod 771 sub && chmod 555 sub/deeper && chmod 640 big && ln big sub/hard &&
       touch -d @1000000000 sub/one && touch -d @1100000000 sub/deeper sub .`,
    ])
  })

  it('copies a directory in and out, the same each time', async () => {
    await copyIn(client, at('source'), at('inside'), false)
    await copyOut(client, at('inside'), at('outside'))
    const whole = (text: string) => text.replace(/(T@)?(\d+)\.\d+$/gm, '$2')
    expect(whole(listing(at('inside')))).toBe(whole(listing(at('source'))))
    expect(whole(listing(at('outside')))).toBe(whole(listing(at('source'))))
    await copyIn(client, at('source/big'), at('outside'), true)
    expect(readFileSync(at('outside/big')).equals(readFileSync(at('source/big')))).toBe(true)
    await expect(copyOut(client, at('nothing'), at('x'))).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('makes and unpacks tar archives that tar agrees with', async () => {
    const { stream, done } = tarOut(client, at('source'))
    const chunks: Buffer[] = []
    for await (const chunk of stream) chunks.push(chunk as Buffer)
    await done
    writeFileSync(at('out.tar'), Buffer.concat(chunks))
    execFileSync('sh', ['-c', `mkdir ${at('untarred')} && tar -C ${at('untarred')} -xf ${at('out.tar')}`])
    const seconds = (text: string) => text.replace(/(\d+)\.\d+$/gm, '$1')
    expect(seconds(listing(at('untarred/source')))).toBe(seconds(listing(at('source'))))
    execFileSync('tar', ['-C', folder, '-cf', at('in.tar'), 'source'])
    await tarIn(client, createReadStream(at('in.tar')), at('packed'))
    expect(seconds(listing(at('packed/source')))).toBe(seconds(listing(at('source'))))
  })

  it('does not let a guest write outside of the target', async () => {
    const hostile = (path: string, type = 'f') =>
      Buffer.concat([
        Buffer.from(type),
        Buffer.alloc(40),
        ...[path, ''].map(text => new PayloadWriter().string(text).finish()),
      ])
    for (const path of ['../escape', 'a/../../escape', '/etc/escape', 'link/escape']) {
      const [near, far] = fakeAgent([hostile('', 'd'), hostile(path), Buffer.alloc(1)])
      const fake = await AgentClient.connect(near)
      execFileSync('sh', [
        '-c',
        `rm -rf ${at('target')}; mkdir -p ${at('target')}/x && ln -s /tmp ${at('target')}/x/link`,
      ])
      await expect(copyOut(fake, '/x', at('target'))).rejects.toMatchObject({ code: 'EPROTO' })
      expect(existsSync(at('escape'))).toBe(false)
      fake.close()
      far.destroy()
    }
  })
})

/** A peer that greets and answers any request with these bytes on its standard output. */
function fakeAgent(chunks: Buffer[]): [Duplex, Duplex] {
  const [near, far] = duplexPair()
  const frame = (type: number, channel: number, stream: number, flags: number, payload: Buffer) => {
    const header = Buffer.alloc(12)
    header.writeUInt32LE(payload.length, 0)
    header.writeUInt32LE(channel, 4)
    header[8] = type
    header[9] = stream
    header.writeUInt16LE(flags, 10)
    far.write(Buffer.concat([header, payload]))
  }
  far.on('data', (data: Buffer) => {
    const type = data[8]
    if (type === Frame.HELLO) frame(Frame.HELLO, 0, 0, 0, new PayloadWriter().u32(1).finish())
    if (type !== Frame.TREE_OUT) return
    for (const chunk of chunks) frame(Frame.DATA, data.readUInt32LE(4), 1, 0, chunk)
    for (const stream of [1, 2]) frame(Frame.DATA, data.readUInt32LE(4), stream, 1, Buffer.alloc(0))
    frame(Frame.EXIT, data.readUInt32LE(4), 0, 0, new PayloadWriter().u32(0).u32(0).u32(0).string('').finish())
  })
  return [near, far]
}

/** Two ends of a pipe (Node 20 has no duplexPair). */
function duplexPair(): [Duplex, Duplex] {
  const ends: Duplex[] = []
  const make = (other: number) =>
    new Duplex({
      read() {},
      write(chunk, _encoding, callback) {
        ends[other]!.push(chunk)
        callback()
      },
      final(callback) {
        ends[other]!.push(null)
        callback()
      },
    })
  ends.push(make(1), make(0))
  return [ends[0]!, ends[1]!]
}
