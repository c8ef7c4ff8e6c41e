/**
 * Whole machines with a few bytes of machine code in them, on the accelerators that are here: console in and out, ends of
 * every kind, pause, save and restore, and nothing left behind.
 */
import { spawnSync } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import type { AcceleratorName } from '../accel/contract.ts'
import { acceleratorNames, loadAccelerator } from '../accel/select.ts'
import { assetUrl } from '../host/assets.ts'
import { MachineError, type MachineErrorCode } from './errors.ts'
import { Machine } from './machine.ts'
import type { MachineOptions } from './machine-options.ts'
import { decodeMachineState, encodeMachineState } from './machine-state.ts'
import { assemble, COUNT_FOR_EVER, ECHO, HELLO, POWER_OFF, REBOOT_I8042, TRIPLE_FAULT } from './micro-programs.ts'

const available: AcceleratorName[] = []
for (const name of acceleratorNames()) {
  if ((await (await loadAccelerator(name)).probe()).runsMicroGuests) available.push(name)
}

function collect(machine: Machine): () => string {
  const parts: Uint8Array[] = []
  machine.on('console', data => parts.push(data))
  return () => Buffer.concat(parts).toString('latin1')
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise(resolve => setTimeout(resolve, 5))
}

const descriptors = (): number => readdirSync('/proc/self/fd').length
const threads = (): number => readdirSync('/proc/self/task').length

describe.skipIf(available.length === 0).each(available)('a machine on %s', accel => {
  const create = (options: MachineOptions) => Machine.create({ accel, memoryMib: 16, ...options })

  it('says hello and powers off', async () => {
    const machine = await create({ program: HELLO })
    const output = collect(machine)
    const power: string[] = []
    machine.on('power', what => power.push(what))
    machine.start()
    expect(await machine.ended()).toEqual({ reason: 'power-off' })
    expect(output()).toBe('Hello\n')
    expect(power).toEqual(['off'])
    expect(machine.phase).toBe('stopped')
    expect((await machine.metrics()).console.consoleBytesOut).toBe(6)
    await machine.close()
  })

  it('echoes what is typed, all of it and in order', async () => {
    const machine = await create({ program: ECHO })
    const output = collect(machine)
    machine.start()
    const typed = Array.from({ length: 3000 }, (_, i) => String.fromCharCode(97 + (i % 26))).join('')
    await machine.console.write(`${typed.slice(0, 100)}`)
    await machine.console.write(`${typed.slice(100)}.`)
    expect(await machine.ended()).toEqual({ reason: 'power-off' })
    expect(output()).toBe(`${typed}.`)
    await machine.close()
  })

  it('blocks a guest whose output nobody takes, and loses nothing', async () => {
    // 128 KiB of counting bytes, twice what the ring holds.
    const count = 1 << 17
    const machine = await create({
      program: assemble('66 ba f8 03 b9', [0, 0, 2, 0], '31 c0 ee fe c0 e2 fb', POWER_OFF),
    })
    const parts: Uint8Array[] = []
    machine.on('console', data => parts.push(data))
    machine.console.hold()
    machine.start()
    await new Promise(resolve => setTimeout(resolve, 300))
    expect(machine.phase).toBe('running')
    expect(parts).toHaveLength(0)
    machine.console.release()
    expect(await machine.ended()).toEqual({ reason: 'power-off' })
    const all = Buffer.concat(parts)
    expect(all.length).toBe(count)
    expect(all.every((byte, i) => byte === (i & 0xff))).toBe(true)
    await machine.close()
  })

  it('reports a reset and a triple fault as such', async () => {
    const reset = await create({ program: REBOOT_I8042 })
    reset.start()
    expect(await reset.ended()).toEqual({ reason: 'reboot' })
    await reset.close()
    const fault = await create({ program: TRIPLE_FAULT })
    fault.start()
    const exit = await fault.ended()
    expect(exit.reason).toBe('triple-fault')
    if (exit.reason === 'triple-fault') {
      expect(exit.dump.registers.general[0]).toBe(0x1234n)
      expect(exit.dump.code.length).toBeGreaterThan(0)
    }
    await fault.close()
  })

  it('pauses, is saved, and goes on counting in another machine', async () => {
    const first = await create({ program: COUNT_FOR_EVER })
    const counter = () => first.memory.readU32(0x1000)
    first.start()
    await until(() => counter() > 1000)
    await first.pause()
    const at = counter()
    await new Promise(resolve => setTimeout(resolve, 50))
    expect(counter()).toBe(at)
    await first.resume()
    await until(() => counter() > at)
    await first.pause()
    const saved = encodeMachineState(await first.save())
    const second = await create({})
    const end = counter()
    second.memory.write(0, first.memory.slice(0, first.memory.size))
    await first.close()
    await second.restore(decodeMachineState(saved))
    expect(second.phase).toBe('paused')
    expect(second.memory.readU32(0x1000)).toBe(end)
    await second.resume()
    await until(() => second.memory.readU32(0x1000) > end + 1000)
    await second.stop()
    expect(second.exit).toEqual({ reason: 'killed' })
    await second.close()
  })

  it('keeps what was typed and not yet read', async () => {
    const first = await create({ program: ECHO })
    first.start()
    await first.pause()
    await first.console.write('late.')
    const state = decodeMachineState(encodeMachineState(await first.save()))
    const second = await create({})
    second.memory.write(0, first.memory.slice(0, first.memory.size))
    await first.close()
    const output = collect(second)
    await second.restore(state)
    await second.resume()
    expect(await second.ended()).toEqual({ reason: 'power-off' })
    expect(output()).toBe('late.')
    await second.close()
  })

  it('refuses a saved state of another shape, or a damaged one', async () => {
    const machine = await create({ program: COUNT_FOR_EVER })
    machine.start()
    await machine.pause()
    const state = await machine.save()
    await machine.close()
    const bytes = encodeMachineState(state)
    expect(() => decodeMachineState(bytes.subarray(0, bytes.length - 1))).toThrow(/truncated/)
    expect(() => decodeMachineState(bytes.subarray(0, 3))).toThrow(/truncated/)
    const other = await create({ memoryMib: 8 })
    await expect(other.restore(state)).rejects.toThrow(/bytes of memory/)
    await other.close()
    const same = await create({})
    const legacy = { ...state.legacy, serial: state.legacy.serial.with(2, 4096) }
    await expect(same.restore({ ...state, legacy })).rejects.toThrow(/word 2 of the saved state of serial/)
    await same.close()
  })

  it('leaves no descriptor and no thread behind', async () => {
    const cycle = async () => {
      const machine = await create({ program: HELLO, cpus: 2 })
      machine.start()
      await machine.ended()
      await machine.close()
    }
    await cycle()
    const before = [descriptors(), threads()]
    for (let i = 0; i < 5; i++) await cycle()
    expect([descriptors(), threads()]).toEqual(before)
  })

  it('ends a guest that never stops when it is closed, more than once', async () => {
    const machine = await create({ program: COUNT_FOR_EVER })
    machine.start()
    await Promise.all([machine.close(), machine.close()])
    expect(machine.phase).toBe('closed')
    expect(machine.exit).toEqual({ reason: 'killed' })
  })

  it.each([
    ['spins', [0xeb, 0xfe]],
    ['waits', [0xfb, 0xf4, 0xeb, 0xfd]],
  ])(
    'lets its process exit while the guest %s',
    (_what, program) => {
      const script = `
      import { Machine } from '${assetUrl('index.js')}'
      const machine = await Machine.create({ accel: '${accel}', memoryMib: 4, cpus: 2, program: Uint8Array.of(${program}) })
      machine.start()
      setTimeout(() => process.exit(7), 200)`
      const { status, signal } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
        timeout: 110_000,
      })
      expect([status, signal]).toEqual([7, null])
    },
    30_000,
  )
})

describe('settings that cannot be', () => {
  it.each<[string, MachineOptions, MachineErrorCode, RegExp]>([
    ['no CPU', { cpus: 0 }, 'BAD_SETTING', /0 CPUs: give 1 to/],
    ['half a CPU', { cpus: 1.5 }, 'BAD_SETTING', /1\.5 CPUs/],
    ['too many CPUs', { cpus: 1000 }, 'BAD_SETTING', /1000 CPUs/],
    ['no memory', { memoryMib: 0 }, 'BAD_SETTING', /0 MiB/],
    ['too much memory', { memoryMib: 1 << 20 }, 'BAD_SETTING', /1048576 MiB/],
    ['kernel and program', { kernel: HELLO, program: HELLO }, 'BAD_SETTING', /not both/],
    ['an initrd alone', { initrd: HELLO }, 'BAD_SETTING', /needs a kernel/],
  ])('%s', async (_name, options, code, message) => {
    const error = await Machine.create(options).catch((reason: unknown) => reason)
    expect(error).toBeInstanceOf(MachineError)
    expect((error as MachineError).code).toBe(code)
    expect((error as MachineError).message).toMatch(message)
  })

  it.skipIf(available.length === 0)('a kernel that is none leaves nothing behind', async () => {
    const before = threads()
    const kernel = new TextEncoder().encode('not a kernel')
    await expect(Machine.create({ kernel, accel: available[0]! })).rejects.toMatchObject({ code: 'BAD_KERNEL' })
    expect(threads()).toBe(before)
  })
})
