/** Boxes on a real guest, end to end: the base image, Debian's cloud kernel, whichever accelerator this machine has. */
import { spawnSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { Box, Runtime } from '../../src/index.ts'

const scratch = mkdtempSync(join(tmpdir(), 'vitrine-boxes-'))
/** The default home: its images and kernels are kept from run to run. The box is this test's own. */
const runtime = new Runtime({ defaults: { memoryMib: 256 } })
const BOOT_MS = 120_000
/** `VITRINE_EXEC_MIB=1024` for a whole gibibyte; it takes minutes on the software CPU. */
const STREAM_MIB = Number(process.env.VITRINE_EXEC_MIB ?? 32)
let box: Box

beforeAll(async () => {
  const network = { allow: ['host.vitrine.internal'] }
  box = await Box.create({ name: `test-${process.pid}`, network, ports: [{ host: 0, guest: 8000 }] }, runtime)
  await box.start()
}, BOOT_MS * 2)

afterAll(async () => {
  await box?.remove({ force: true })
  rmSync(scratch, { recursive: true })
}, BOOT_MS)

describe('a box', () => {
  it('runs commands', { timeout: BOOT_MS }, async () => {
    const { stdout, exitCode } = await box.exec('uname', ['-sm'])
    expect([stdout, exitCode]).toEqual(['Linux x86_64\n', 0])
    expect(await box.exec('sh', ['-c', 'echo err >&2; exit 7'])).toMatchObject({ stderr: 'err\n', exitCode: 7 })
    expect(await box.exec('sh', ['-c', 'kill -9 $$'])).toMatchObject({ exitCode: 137, signal: 'SIGKILL' })
    expect((await box.exec('hostname')).stdout).toBe(`${box.name}\n`)
    await expect(box.exec('no-such-command')).rejects.toMatchObject({ code: 'ENOENT' })
  })

  it('runs lines of its shell, with input, listeners and a limit', { timeout: BOOT_MS }, async () => {
    const heard: string[] = []
    const { stdout, stderr } = await box.sh('wc -c; echo "$A" >&2', {
      input: randomBytes(100_000),
      env: { A: 'b' },
      onStderr: chunk => heard.push(chunk.toString()),
    })
    expect([stdout.trim(), stderr, heard.join('')]).toEqual(['100000', 'b\n', 'b\n'])
    await expect(box.exec('yes', [], { maxOutputBytes: 100_000 })).rejects.toMatchObject({ code: 'OUTPUT_LIMIT' })
    expect((await box.exec('pidof', ['yes'])).exitCode).toBe(1)
  })

  it('has the time of the host', { timeout: BOOT_MS }, async () => {
    const guest = Number((await box.exec('date', ['+%s'])).stdout)
    expect(Math.abs(guest - Date.now() / 1000)).toBeLessThan(30)
  })

  it('reports exit codes and signals as a shell does', { timeout: BOOT_MS }, async () => {
    const scripts = [
      'true',
      'exit 255',
      'exit 256',
      'kill -TERM $$',
      'kill -SEGV $$',
      'kill -PIPE $$',
      'kill -34 $$',
      'no-such-thing',
      '/etc',
    ]
    for (const script of scripts) {
      const here = spawnSync('sh', ['-c', `sh -c '${script}' 2>/dev/null; echo $?`], { encoding: 'utf8' })
      expect([script, (await box.exec('sh', ['-c', script])).exitCode]).toEqual([script, Number(here.stdout)])
    }
    await expect(box.exec('/etc')).rejects.toMatchObject({ code: 'EACCES' })
    const killed = box.spawn('sh', ['-c', 'echo before; sleep 1000 & wait'])
    await new Promise(resolve => killed.stdout.once('readable', resolve))
    killed.kill('SIGKILL')
    expect(await killed.result()).toMatchObject({
      stdout: 'before\n',
      exitCode: 137,
      signal: 'SIGKILL',
      timedOut: false,
    })
    const late = await box.exec('sh', ['-c', 'echo before; sleep 1000'], { timeoutMs: 1000 })
    expect(late).toMatchObject({ stdout: 'before\n', exitCode: 137, timedOut: true })
    // What a command started goes with it.
    expect((await box.exec('pidof', ['sleep'])).stdout).toBe('')
  })

  it('runs 200 commands at once', { timeout: BOOT_MS }, async () => {
    const results = await Promise.all(
      Array.from({ length: 200 }, (_, i) =>
        box.exec('sh', ['-c', `read x; echo ${i}; echo ${-i} >&2; exit ${i % 50}`]),
      ),
    )
    expect(results.map(({ stdout, stderr, exitCode }) => [stdout, stderr, exitCode])).toEqual(
      results.map((_, i) => [`${i}\n`, `${-i}\n`, i % 50]),
    )
  })

  it(`gives back ${STREAM_MIB} MiB unharmed`, { timeout: Math.max(BOOT_MS, STREAM_MIB * 2000) }, async () => {
    const block = randomBytes(2 ** 20 - 8)
    await box.files.write('/tmp/block', block)
    // Every piece is numbered, so that one lost, doubled or moved shows.
    const script = `i=0; while [ $i -lt ${STREAM_MIB} ]; do printf %08d $i; cat /tmp/block; i=$((i + 1)); done`
    const execution = box.spawn('sh', ['-c', script])
    const [here, there] = [createHash('sha256'), createHash('sha256')]
    for (let i = 0; i < STREAM_MIB; i++) here.update(String(i).padStart(8, '0')).update(block)
    let bytes = 0
    execution.stdout.on('data', (chunk: Buffer) => {
      there.update(chunk)
      bytes += chunk.length
    })
    expect((await execution.exit).exitCode).toBe(0)
    expect(bytes).toBe(STREAM_MIB * 2 ** 20)
    expect(there.digest('hex')).toBe(here.digest('hex'))
  })

  it('takes input to its end and gives all output back', { timeout: BOOT_MS }, async () => {
    const data = randomBytes(1_000_000)
    const execution = box.spawn('sha256sum')
    execution.stdin.end(data)
    expect((await execution.result()).stdout.slice(0, 64)).toBe(createHash('sha256').update(data).digest('hex'))
    const { stdoutBytes } = await box.exec('sh', ['-c', 'seq 1 200000'])
    expect(stdoutBytes.toString()).toBe(Array.from({ length: 200_000 }, (_, i) => `${i + 1}\n`).join(''))
  })

  it('has files', { timeout: BOOT_MS }, async () => {
    const data = randomBytes(300_000)
    await box.files.write('/srv/data/blob', data)
    expect((await box.files.read('/srv/data/blob')).equals(data)).toBe(true)
    writeFileSync(join(scratch, 'hello.txt'), 'hello\n')
    await box.copyIn(join(scratch, 'hello.txt'), '/srv/')
    await box.copyOut('/srv', join(scratch, 'out'))
    expect(readFileSync(join(scratch, 'out/hello.txt'), 'utf8')).toBe('hello\n')
    expect(readFileSync(join(scratch, 'out/data/blob')).equals(data)).toBe(true)
  })

  it('reaches what it may, and is reached through its port', { timeout: BOOT_MS }, async () => {
    const server = createServer((_request, response) => response.end('from the host\n'))
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const { port } = server.address() as { port: number }
    const get = (url: string) => box.exec('wget', ['-qO-', url])
    expect((await get(`http://host.vitrine.internal:${port}/`)).stdout).toBe('from the host\n')
    server.close()
    expect(await get('http://192.0.2.1/')).toMatchObject({ stdout: '', exitCode: 1 })
    expect((await box.exec('ping6', ['-c', '1', 'fd76:6974:7269::2'])).exitCode).toBe(0)
    await box.exec('sh', ['-c', 'mkdir /www && echo from the guest > /www/index.html && httpd -p 8000 -h /www'])
    const [open] = await box.ports()
    expect(await (await fetch(`http://127.0.0.1:${open!.host}/`)).text()).toBe('from the guest\n')
  })

  it('sees a disk of the size that was asked for', { timeout: BOOT_MS }, async () => {
    const { stdout } = await box.exec('df', ['-k', '/'])
    const kib = Number(/\s(\d+)\s+\d+\s+\d+\s+\d+%/.exec(stdout)?.[1])
    expect(kib).toBeGreaterThan(9 * 1024 * 1024)
  })

  it('keeps its files when it is stopped and started', { timeout: BOOT_MS * 2 }, async () => {
    await box.files.write('/root/kept', 'still here')
    const states: string[] = []
    box.on('state', state => states.push(state))
    box.once('exit', ({ reason }) => states.push(reason))
    await box.stop()
    expect(box.state).toBe('stopped')
    expect(states).toEqual(['stopped', 'stopped'])
    const same = await Box.get(box.name, runtime)
    expect(await same.files.readText('/root/kept')).toBe('still here')
    expect(same.state).toBe('running')
    same.close()
  })

  it('is missed when its VMM is killed, and starts again', { timeout: BOOT_MS * 2 }, async () => {
    await box.start()
    await box.files.write('/root/synced', 'on disk')
    await box.exec('sync')
    const exited = new Promise(resolve => box.once('exit', resolve))
    const sleeping = box.spawn('sleep', ['1000'])
    await sleeping.pid
    process.kill((await box.vmm()).pid, 'SIGKILL')
    expect(await exited).toMatchObject({ reason: 'vmm-failed' })
    await expect(sleeping.exit).rejects.toMatchObject({ code: 'DISCONNECTED' })
    expect(box.state).toBe('stopped')
    expect(await box.files.readText('/root/synced')).toBe('on disk')
  })
})
