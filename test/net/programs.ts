/**
 * The programs that people use a network with, in a Debian guest on any accelerator, against servers on loopback: one boot for all. Sizes are
 * small unless told: VITRINE_NET_BYTES=1073741824 transfers a GiB each way.
 */
import { execFileSync, spawn } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type AcceleratorName, Box, Runtime } from '../../src/index.ts'
import { networkImage, noNetworkImage } from '../image/network-image.ts'
import { HOST, LoopbackServers, patternDigest } from './servers.ts'

const BYTES = Number(process.env.VITRINE_NET_BYTES ?? 16 << 20)
const PARALLEL = 500
const reason = noNetworkImage()
const program = (name: string): string => fileURLToPath(new URL(name, import.meta.url))

/** `slowness`: how many times longer than on the software CPU it may take. */
export function testNetworkPrograms(accel: AcceleratorName | undefined, slowness: number): void {
  const LIMIT = { timeout: (180_000 + (BYTES >> 20) * 1000) * slowness }
  const LONG_LIMIT = { timeout: 900_000 * slowness }
  describe.skipIf(reason)(`programs in a guest${reason ? `: ${reason}` : ''}`, () => {
    const scratch = mkdtempSync(join(tmpdir(), 'vitrine-net-programs-'))
    /** The default home: its images and kernels are kept from run to run. The box is this test's own. */
    const runtime = new Runtime()
    let servers: LoopbackServers
    let box: Box

    beforeAll(async () => {
      servers = await LoopbackServers.start(scratch)
      box = await Box.create(
        {
          name: `programs-${process.pid}`,
          image: networkImage(),
          memoryMib: 768,
          network: { allow: [HOST] },
          ports: [{ host: 0, guest: 3000 }],
          ...(accel ? { accel } : {}),
        },
        runtime,
      )
      await box.start()
      await box.files.write('/root/ca.pem', servers.certificate)
    }, 400_000 * slowness)

    afterAll(async () => {
      servers?.close()
      await box?.remove({ force: true })
      rmSync(scratch, { recursive: true })
    }, 60_000)

    /** Runs a script that must succeed; its output. */
    async function sh(script: string): Promise<string> {
      const { stdout, stderr, exitCode } = await box.exec('bash', ['-ec', `set -o pipefail\n${script}`])
      expect({ exitCode, stderr: exitCode === 0 ? '' : stderr + stdout }).toEqual({ exitCode: 0, stderr: '' })
      return stdout
    }

    it('resolves over UDP and TCP, and pings', LIMIT, async () => {
      expect(await sh(`getent ahostsv4 ${HOST} | head -1`)).toMatch(/^10\.0\.2\.2 /)
      expect(await sh(`dig +short @10.0.2.3 ${HOST}; dig +short +tcp @10.0.2.3 ${HOST}`)).toBe('10.0.2.2\n10.0.2.2\n')
      expect(await sh('ping -c 2 -i 0.2 10.0.2.2; ping -c 2 -i 0.2 -s 4000 fd76:6974:7269::2')).toMatch(
        /2 received[\s\S]*2 received/,
      )
    })

    it('fetches with curl: HTTP/1.1, kept connections, IPv6, TLS', LIMIT, async () => {
      const http = `http://${HOST}:${servers.http}`
      const verbose = await sh(`curl -sSv ${http}/bytes/1000 ${http}/bytes/2000 -o /dev/null -o /dev/null 2>&1`)
      expect(verbose).toMatch(/HTTP\/1\.1 200 OK[\s\S]*Re-using existing connection[\s\S]*HTTP\/1\.1 200 OK/)
      expect(await sh(`curl -sSg 'http://[fd76:6974:7269::2]:${servers.http6}/bytes/5000' | sha256sum`)).toContain(
        patternDigest(5000),
      )
      const tls = `https://${HOST}:${servers.https}/bytes/100000`
      expect(await sh(`curl -sS --cacert /root/ca.pem ${tls} | sha256sum`)).toContain(patternDigest(100_000))
      // 60: a certificate that nobody vouches for. 7: no connection, for the rules forbid it.
      expect(await box.exec('curl', ['-sS', tls])).toMatchObject({ exitCode: 60 })
      expect(await box.exec('curl', ['-sS', '--max-time', '60', 'http://192.0.2.1/'])).toMatchObject({ exitCode: 7 })
    })

    it('installs with apt', LONG_LIMIT, async () => {
      const source = `deb [trusted=yes] http://${HOST}:${servers.http}/apt ./`
      const apt = 'apt-get -q -o Acquire::Languages=none'
      await sh(
        `rm -rf /etc/apt/sources.list*; echo '${source}' > /etc/apt/sources.list; ${apt} update; ${apt} install -y vitrine-hello`,
      )
      expect(await sh('vitrine-hello')).toBe('hello from a package\n')
    })

    it("clones with git, by git's own protocol and over TLS", LIMIT, async () => {
      const head = 'git -C /root/clone rev-parse HEAD; git -C /root/clone fsck --no-progress; rm -rf /root/clone'
      expect(await sh(`git clone -q git://${HOST}:${servers.git}/repo.git /root/clone; ${head}`)).toBe(
        `${servers.head}\n`,
      )
      const url = `https://${HOST}:${servers.https}/git/repo.git`
      expect(await sh(`git -c http.sslCAInfo=/root/ca.pem clone -q ${url} /root/clone; ${head}`)).toBe(
        `${servers.head}\n`,
      )
    })

    it('installs with npm', LONG_LIMIT, async () => {
      const options = '--no-audit --no-fund --no-update-notifier --loglevel=error'
      await sh(
        `mkdir -p /root/app; cd /root/app; npm install ${options} --registry http://${HOST}:${servers.http}/npm/ vitrine-outer`,
      )
      expect(await sh(`cd /root/app; node -p "require('vitrine-outer')"`)).toBe('inner and outer\n')
    })

    it(`has ${PARALLEL} connections open at once`, LIMIT, async () => {
      await box.files.write('/root/parallel.py', readFileSync(program('parallel.py')))
      const before = (await box.network.counters()).tcpOpened!
      expect(await sh(`python3 /root/parallel.py 10.0.2.2 ${servers.echo} ${PARALLEL}`)).toBe(
        `PARALLEL ${PARALLEL} of ${PARALLEL}\n`,
      )
      expect((await box.network.counters()).tcpOpened! - before).toBeGreaterThanOrEqual(PARALLEL)
    })

    it(`carries ${BYTES} bytes down and up`, LIMIT, async () => {
      const url = `http://${HOST}:${servers.http}`
      const expected = patternDigest(BYTES)
      const seen = await sh(
        `curl -sS ${url}/bytes/${BYTES} | tee >(sha256sum >/root/sum) | curl -sS -T - -H 'Expect:' ${url}/up; cat /root/sum`,
      )
      expect(seen).toContain(expected)
      expect(servers.uploads.get('/up')).toBe(expected)
      expect(await box.network.counters()).toMatchObject({ malformed: 0, badChecksum: 0, memoryDrops: 0 })
    })

    it('serves curl and a browser through a forwarded port', LIMIT, async () => {
      await box.files.write('/root/server.py', readFileSync(program('web-server.py')))
      const server = await box.spawn('python3', ['/root/server.py', '3000'])
      await new Promise<void>((resolve, reject) => {
        server.stdout.on('data', (data: Buffer) => String(data).includes('SERVING') && resolve())
        server.exit.then(() => reject(new Error('the server in the guest ended')), reject)
      })
      const [port] = await box.ports()
      const base = `http://127.0.0.1:${port!.host}`
      expect(execFileSync('curl', ['-sS', `${base}/hello`, `${base}/again`], { encoding: 'utf8' })).toBe(
        'GET /hello 1GET /again 2',
      )
      const browser = spawn(process.execPath, ['--experimental-websocket', program('browser.mjs'), base])
      let [output, errors] = ['', '']
      browser.stdout.on('data', data => {
        output += data
      })
      browser.stderr.on('data', data => {
        errors += data
      })
      await new Promise(resolve => browser.on('close', resolve))
      expect(output, errors).toBe(
        `${JSON.stringify({ pages: 20, sockets: 1, last: 'GET /page/19 22', echoed: true })}\n`,
      )
      server.kill('SIGKILL')
    })
  })
}
