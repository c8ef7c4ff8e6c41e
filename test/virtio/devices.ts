/** Every device against the drivers of a real Linux, once for each accelerator that can run one. */
import { execFileSync } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { MachineOptions } from '../../src/machine/machine-options.ts'
import { createConsoleStreams } from '../../src/virtio/console/streams.ts'
import { connectToGuest, listenForGuest } from '../../src/virtio/vsock/host-api.ts'
import { compileVsockPipe, programFiles, TestGuest } from './guest.ts'
import { mountSmallFs, smallFsMissing, unmountSmallFs } from './small-fs.ts'
import { testTree } from './tree.ts'

const sha = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex')

export interface DevicesOptions {
  readonly accel: NonNullable<MachineOptions['accel']>
  /** For a boot and all that is done in it. */
  readonly limitMs: number
}

export function describeDevices({ accel, limitMs }: DevicesOptions): void {
  describe('virtio devices with Linux drivers', () => {
    let folder: string
    beforeAll(() => {
      folder = mkdtempSync(join(tmpdir(), 'vitrine-virtio-'))
    })
    afterAll(() => rmSync(folder, { recursive: true }))

    it(
      'mkfs, mount, untar, sync, checksum, trim; again after a reboot; clean to e2fsck',
      async () => {
        const tree = testTree(folder)
        const raw = join(folder, 'raw.img')
        const overlay = join(folder, 'overlay.qcow2')
        const base = join(folder, 'base.img')
        writeFileSync(raw, '')
        truncateSync(raw, 64 << 20)
        const pattern = randomBytes(4 << 20)
        writeFileSync(base, pattern)
        execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-b', base, '-F', 'raw', overlay])
        const devices = [
          { kind: 'blk', disk: { path: raw, format: 'raw' }, serial: 'first-disk', queues: 2 },
          { kind: 'blk', disk: { path: overlay, format: 'qcow2' } },
        ] as const
        const first = await TestGuest.boot({
          accel,
          cpus: 2,
          devices,
          files: { ...programFiles('/sbin/mke2fs'), 'tree.tar': { content: tree.archive } },
          script: `
echo "SERIAL $(cat /sys/block/vda/serial) SECTORS $(cat /sys/block/vda/size)"
echo "BASE $(sha256sum < /dev/vdb)"
dd if=/dev/urandom of=/dev/vdb bs=4096 seek=100 count=50 conv=fsync 2>/dev/null
echo "CHANGED $(sha256sum < /dev/vdb)"
/sbin/mke2fs -q -t ext4 /dev/vda && mount -t ext4 /dev/vda /mnt && echo MOUNTED
mkdir /mnt/d; for i in $(seq 100); do echo "file $i" > /mnt/d/$i; done
tar -xf /tree.tar -C /mnt; sync; echo 3 > /proc/sys/vm/drop_caches
echo "TREE $(${tree.command})"
dd if=/dev/urandom of=/mnt/random bs=65536 count=64 2>/dev/null
dd if=/dev/urandom of=/mnt/garbage bs=65536 count=128 2>/dev/null
echo "RANDOM $(sha256sum < /mnt/random)"
sync; rm /mnt/garbage; sync; fstrim -v /mnt
umount /mnt && echo UNMOUNTED
reboot -f`,
        })
        expect(await first.ended(limitMs)).toMatchObject({ reason: 'reboot' })
        const { output } = first
        const said = (name: string): string => new RegExp(`${name} (\\S+)`).exec(output)?.[1] ?? output
        expect(said('SERIAL')).toBe('first-disk')
        expect(said('SECTORS')).toBe(String((64 << 20) / 512))
        expect(said('BASE')).toBe(sha(pattern))
        expect(output).toContain('MOUNTED')
        expect(said('TREE')).toBe(tree.checksum)
        expect(output).toContain('UNMOUNTED')
        const metrics = await first.devices[0]!.metrics()
        expect(metrics).toMatchObject({ ioErrors: 0, guestFaults: 0, badAccesses: 0 })
        expect(metrics.discards).toBeGreaterThan(0)
        await first.close()
        expect(first.reports).toEqual([])
        execFileSync('e2fsck', ['-fn', raw], { stdio: 'pipe' })
        execFileSync('qemu-img', ['check', '-q', overlay])
        execFileSync('qemu-img', ['convert', '-O', 'raw', overlay, join(folder, 'flat')])
        expect(sha(readFileSync(join(folder, 'flat')))).toBe(said('CHANGED'))
        expect(sha(readFileSync(base))).toBe(sha(pattern))
        const dumped = execFileSync('debugfs', ['-R', 'cat /random', raw], {
          maxBuffer: 64 << 20,
          stdio: ['ignore', 'pipe', 'ignore'],
        })
        expect(sha(dumped)).toBe(said('RANDOM'))
        // What was trimmed is not in the file any more: 13 MiB of content and 4 of journal, not 8 more.
        expect(statSync(raw).blocks * 512).toBeLessThan(20 << 20)

        const second = await TestGuest.boot({
          accel,
          devices,
          sharedWorker: true,
          script: `
mount -t ext4 /dev/vda /mnt && echo "AGAIN $(sha256sum < /mnt/random) FILES $(ls /mnt/d | wc -l)"
echo "CHANGED $(sha256sum < /dev/vdb)"
echo "TREE $(${tree.command})"
rm -r /mnt/d; umount /mnt`,
        })
        expect(await second.ended(limitMs)).toMatchObject({ reason: 'power-off' })
        expect(second.output).toContain(`AGAIN ${said('RANDOM')}`)
        expect(second.output).toContain('FILES 100')
        expect(second.output).toContain(`TREE ${tree.checksum}`)
        expect(second.output).toContain(`CHANGED ${said('CHANGED')}`)
        await second.close()
        execFileSync('e2fsck', ['-fn', raw], { stdio: 'pipe' })
      },
      limitMs * 2,
    )

    it.skipIf(smallFsMissing)(
      'a host without space: I/O errors, a sound image, and on it goes when there is space again',
      async () => {
        const small = join(folder, 'small')
        const image = join(small, 'disk.qcow2')
        mountSmallFs(small, 8)
        try {
          execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', image, '32M'])
          writeFileSync(join(small, 'ballast'), new Uint8Array(4 << 20))
          const guest = await TestGuest.boot({
            accel,
            devices: [{ kind: 'blk', disk: { path: image, format: 'qcow2' } }],
            script: `
dd if=/dev/urandom of=/dev/vda bs=64k count=24 oflag=direct conv=fsync 2>/dev/null; echo "BEFORE $?"
first() { dd if=/dev/vda bs=64k count=24 iflag=direct 2>/dev/null | sha256sum; }
sum=$(first)
dd if=/dev/urandom of=/dev/vda bs=64k seek=24 count=200 oflag=direct 2>/dev/null; echo "FULL $?"
[ "$(first)" = "$sum" ] && echo "SAME"
read line < /dev/ttyS0
dd if=/dev/urandom of=/dev/vda bs=64k seek=300 count=40 oflag=direct conv=fsync 2>/dev/null; echo "AGAIN $?"
echo "DISK $(sha256sum < /dev/vda)"`,
          })
          try {
            await guest.printed(/SAME/, limitMs)
            expect(guest.output).toMatch(/BEFORE 0[\s\S]*FULL 1/)
            rmSync(join(small, 'ballast'))
            await guest.machine.console.write('go\n')
            await guest.ended(limitMs)
            expect(guest.output).toContain('AGAIN 0')
          } finally {
            await guest.close()
          }
          expect(guest.reports.length).toBeGreaterThan(0)
          for (const report of guest.reports) expect(report).toContain('ENOSPC')
          execFileSync('qemu-img', ['check', '-q', image])
          execFileSync('qemu-img', ['convert', '-O', 'raw', image, join(folder, 'flat')])
          expect(sha(readFileSync(join(folder, 'flat')))).toBe(/DISK (\S+)/.exec(guest.output)?.[1])
        } finally {
          unmountSmallFs(small)
        }
      },
      limitMs,
    )

    it(
      'entropy, a console both ways, vsock both ways, a network card, a balloon',
      async () => {
        const path = join(folder, 'v.sock')
        const streams = createConsoleStreams()
        let heard = ''
        let answered = false
        streams.output.on('data', (chunk: Buffer) => {
          heard += chunk.toString('latin1')
          // Linux drops what is typed before anybody has opened the console.
          if (heard.includes('what?') && !answered) {
            answered = true
            streams.input.write('good morning\n')
          }
        })
        const payload = randomBytes(3 << 20)
        const server = await listenForGuest(path, 52, stream => {
          stream.on('error', () => {})
          stream.on('data', () => {})
          stream.end(payload)
        })
        const guest = await TestGuest.boot({
          accel,
          sharedWorker: true,
          devices: [
            { kind: 'rng' },
            { kind: 'console', inputFd: streams.inputFd, outputFd: streams.outputFd, columns: 101, rows: 37 },
            { kind: 'vsock', cid: 7, path },
            { kind: 'net', mac: '02:00:00:00:00:07', mtu: 1400, link: { kind: 'loopback' } },
            { kind: 'balloon' },
          ],
          files: { 'bin/vsock-pipe': { content: compileVsockPipe(folder), mode: 0o755 } },
          script: `
echo "RNG $(cat /sys/class/misc/hw_random/rng_current) $(dd if=/dev/hwrng bs=512 count=8 2>/dev/null | sha256sum)"
( exec 3<>/dev/hvc0; echo "what?" >&3; read line <&3; echo "the guest heard: $line" >&3; cat <&3 > /night ) &
echo "MAC $(cat /sys/class/net/eth0/address) MTU $(cat /sys/class/net/eth0/mtu)"
vsock-pipe echo 77 &
echo "FROM-HOST $(vsock-pipe connect 2 52 < /dev/null | sha256sum)"
vsock-pipe connect 2 999 < /dev/null; echo "REFUSED $?"
ip link set eth0 up; ip addr add 10.1.1.1/24 dev eth0
ping -c 1 -W 1 10.1.1.2 > /dev/null; ping -c 1 -W 1 10.1.1.2 > /dev/null
echo "FRAMES $(cat /sys/class/net/eth0/statistics/tx_packets) $(cat /sys/class/net/eth0/statistics/rx_packets)"
echo "SIZE $(stty size < /dev/hvc0)"
echo "FREE-BEFORE $(awk '/MemFree/ {print $2}' /proc/meminfo)"
echo READY
while [ ! -e /stop ]; do
  sleep 0.2
  free=$(awk '/MemFree/ {print $2}' /proc/meminfo)
  [ $free -lt 100000 ] && break
done
echo "FREE-AFTER $free"
while [ ! -s /night ]; do sleep 0.2; done; echo "LAST $(head -n 1 /night)"`,
        })
        try {
          await guest.printed(/READY/, limitMs)
          const { output } = guest
          expect(output).toMatch(/RNG virtio_rng\.\d+ [0-9a-f]{64}/)
          while (!heard.includes('the guest heard: good morning')) await new Promise(resolve => setTimeout(resolve, 20))
          expect(output).toContain('SIZE 37 101')
          expect(output).toContain('MAC 02:00:00:00:00:07 MTU 1400')
          expect(output).toContain(`FROM-HOST ${sha(payload)}`)
          expect(output).toContain('REFUSED 6')
          const [, sent, got] = /FRAMES (\d+) (\d+)/.exec(output)!
          expect(Number(sent)).toBeGreaterThan(0)
          // Everything comes back from the loopback link.
          expect(Number(got)).toBeGreaterThan(0)

          // The guest echoes what the host sends, half-close included.
          const stream = await connectToGuest(path, 77)
          const echoed: Buffer[] = []
          stream.on('data', (chunk: Buffer) => echoed.push(chunk))
          const closed = new Promise(resolve => stream.on('end', resolve))
          stream.end(payload)
          await closed
          expect(sha(Buffer.concat(echoed))).toBe(sha(payload))

          await guest.device('balloon').control({ targetMib: 128 })
          await guest.printed(/FREE-AFTER \d+/, limitMs)
          expect(await guest.device('balloon').metrics()).toMatchObject({ guestFaults: 0, badPages: 0 })
          const state = (await guest.device('balloon').control({ stats: true })) as { actualPages: number }
          expect(state.actualPages).toBeGreaterThan(10_000)
          streams.input.write('good night\n')
          expect(await guest.ended(limitMs)).toMatchObject({ reason: 'power-off' })
          expect(guest.output).toContain('LAST good night')
          for (const device of guest.devices) {
            expect(await device.metrics()).toMatchObject({ guestFaults: 0, badAccesses: 0 })
          }
        } finally {
          await guest.close()
          server.close()
          streams.close()
        }
        expect(guest.reports).toEqual([])
      },
      limitMs * 2,
    )

    it(
      'goes on after being saved and restored into another machine, amid its work',
      async () => {
        const disk = join(folder, 'moving.img')
        const path = join(folder, 'w.sock')
        writeFileSync(disk, '')
        truncateSync(disk, 16 << 20)
        const options = {
          accel,
          devices: [
            { kind: 'blk', disk: { path: disk, format: 'raw' } },
            { kind: 'rng' },
            { kind: 'vsock', cid: 9, path },
          ],
          files: { 'bin/vsock-pipe': { content: compileVsockPipe(folder), mode: 0o755 } },
          script: `
vsock-pipe echo 77 &
i=0
while [ $i -lt 400 ]; do
  i=$((i + 1))
  echo "line $i" | dd of=/dev/vda bs=512 seek=$i count=1 conv=sync,fsync 2>/dev/null
  dd if=/dev/hwrng of=/dev/null bs=64 count=1 2>/dev/null
  echo "ROUND $i"
  [ $i -lt 20 ] || [ -e /go ] || { vsock-pipe listen 88 < /dev/null > /go; }
  [ $i -ge 40 ] && break
done`,
        } as const
        const first = await TestGuest.boot(options)
        await first.printed(/ROUND 5\b/, limitMs)
        const second = await TestGuest.continue(options, first.machine)
        try {
          await second.printed(/ROUND 20\b/, limitMs)
          // Listeners outlive the move, and new connections work.
          const echo = await connectToGuest(path, 77)
          const echoed = new Promise<string>(resolve => {
            let text = ''
            echo.on('data', (chunk: Buffer) => {
              text += chunk.toString()
            })
            echo.on('end', () => resolve(text))
          })
          echo.end('still here?')
          expect(await echoed).toBe('still here?')
          const go = await retrying(() => connectToGuest(path, 88))
          go.end('go\n')
          go.resume()
          expect(await second.ended(limitMs)).toMatchObject({ reason: 'power-off' })
          for (const device of second.devices) expect(await device.metrics()).toMatchObject({ guestFaults: 0 })
        } finally {
          await second.close()
        }
        const bytes = readFileSync(disk)
        for (let i = 1; i <= 40; i++) expect(bytes.subarray(i * 512, i * 512 + 8).toString()).toContain(`line ${i}`)
      },
      limitMs * 2,
    )
  })
}

/** Until the guest listens. */
async function retrying<T>(attempt: () => Promise<T>): Promise<T> {
  for (let tries = 0; ; tries++) {
    try {
      return await attempt()
    } catch (error) {
      if (tries > 300) throw error
      await new Promise(resolve => setTimeout(resolve, 100))
    }
  }
}
