/** The legacy devices by themselves: what a driver sees, register by register. */
import { beforeEach, describe, expect, it } from 'vitest'
import { GuestMemory } from '../../memory/guest-memory.ts'
import { CONSOLE_RING_SIZE, CONTROL, controlWords } from '../shared-layout.ts'
import { ConsoleOutput } from './console-output.ts'
import { ConsoleRing } from './console-ring.ts'
import { I8042 } from './i8042.ts'
import { Rtc } from './rtc.ts'
import { Serial } from './serial.ts'

const { wasm } = GuestMemory.create(2)

describe('COM1', () => {
  let interrupts = 0
  let notified = 0
  const output = ConsoleRing.output(wasm)
  const input = ConsoleRing.input(wasm)
  const serial = new Serial(wasm, new ConsoleOutput(wasm, { ready: () => void notified++ }), () => interrupts++)
  const type = (text: string) => {
    input.write(new TextEncoder().encode(text))
    serial.inputArrived()
  }
  const text = () => Buffer.from(output.take()).toString()

  beforeEach(() => {
    controlWords(wasm).fill(0)
    serial.reset()
    interrupts = 0
    notified = 0
  })

  it('is found as a 16550A', () => {
    // Linux's autoconfig: scratch register, FIFO bits after FCR, modem lines in loopback.
    serial.write(7, 0xa5)
    expect(serial.read(7)).toBe(0xa5)
    expect(serial.read(2)).toBe(0x01)
    serial.write(2, 1)
    expect(serial.read(2)).toBe(0xc1)
    serial.write(4, 0x10 | 0x0a)
    expect(serial.read(6) & 0xf0).toBe(0x90)
    serial.write(4, 0)
    expect(serial.read(6)).toBe(0xb0)
  })

  it('keeps the divisor apart from data', () => {
    serial.write(3, 0x83)
    serial.write(0, 1)
    serial.write(1, 0)
    expect([serial.read(0), serial.read(1), serial.transmits(0)]).toEqual([1, 0, false])
    serial.write(3, 0x03)
    expect(serial.read(3)).toBe(0x03)
    expect(output.used).toBe(0)
  })

  it('sends, with one notice for the first byte and an interrupt for each when they are on', () => {
    for (const char of 'boot') serial.write(0, char.charCodeAt(0))
    expect([notified, interrupts]).toEqual([1, 0])
    expect(text()).toBe('boot')
    serial.write(1, 2)
    expect(interrupts).toBe(1)
    expect(serial.read(2)).toBe(0x02)
    // Reading IIR acknowledged it.
    expect(serial.read(2)).toBe(0x01)
    serial.write(0, 0x41)
    expect([interrupts, notified]).toEqual([2, 2])
    // Off and on again raises it again: drivers test for chips that do not.
    serial.read(2)
    serial.write(1, 0)
    serial.write(1, 2)
    expect([serial.read(2), interrupts]).toEqual([2, 3])
  })

  it('receives while RTS is on, and keeps what was typed before', () => {
    serial.write(4, 0x08)
    type('ab')
    expect(serial.read(5) & 1).toBe(0)
    // What a driver does while it starts: reads and throws away.
    serial.write(2, 0x07)
    expect(serial.read(0)).toBe(0)
    serial.write(1, 1)
    expect(interrupts).toBe(0)
    serial.write(4, 0x0b)
    expect(interrupts).toBe(1)
    expect(serial.read(2)).toBe(0xc4)
    expect([serial.read(5) & 1, serial.read(0), serial.read(0), serial.read(5) & 1]).toEqual([1, 0x61, 0x62, 0])
    type('c')
    expect([interrupts, serial.read(0), serial.read(2)]).toEqual([2, 0x63, 0xc1])
  })

  it('receives in a guest that never programmed it', () => {
    type('x')
    expect([serial.read(5) & 1, serial.read(0)]).toEqual([1, 0x78])
  })

  it('loops back without sending', () => {
    serial.write(4, 0x10)
    serial.write(0, 0x55)
    serial.write(0, 0x56)
    expect([serial.read(5) & 1, serial.read(0), serial.read(0), serial.read(5) & 1]).toEqual([1, 0x55, 0x56, 0])
    for (let i = 0; i < 40; i++) serial.write(0, i)
    for (let i = 0; i < 16; i++) expect(serial.read(0)).toBe(i)
    expect(serial.read(0)).toBe(0)
    expect(output.used).toBe(0)
  })

  it('is the same after save and restore, and raises what was pending', () => {
    serial.write(1, 3)
    serial.write(4, 0x0b)
    serial.write(7, 9)
    const saved = JSON.parse(JSON.stringify(serial.save())) as unknown
    serial.reset()
    serial.restore(saved)
    interrupts = 0
    serial.raiseAgain()
    expect([serial.read(1), serial.read(4), serial.read(7), interrupts]).toEqual([3, 0x0b, 9, 1])
    expect(() => serial.restore([1, 2])).toThrow(/32 words/)
    expect(() => serial.restore(serial.save().map(() => 'x'))).toThrow(/word 0/)
    expect(() => serial.restore(serial.save().map(() => 256))).toThrow(/cannot be 256/)
  })

  it('uses its reserve and then drops, counted, only when the machine is to stand still', () => {
    const words = controlWords(wasm)
    Atomics.store(words, CONTROL.holdStill, 1)
    const out = new ConsoleOutput(wasm, { ready: () => {} })
    for (let i = 0; i < CONSOLE_RING_SIZE + 10; i++) {
      out.waitForRoom()
      out.push(i & 0xff)
    }
    expect(words[CONTROL.outDropped]).toBe(10)
    const all = output.take()
    expect(all.length).toBe(CONSOLE_RING_SIZE)
    expect(all[65535]).toBe(0xff)
  })
})

describe('the keyboard controller', () => {
  it('answers its commands and resets by both ways', () => {
    const i8042 = new I8042(wasm)
    i8042.reset()
    expect(i8042.readStatus()).toBe(4)
    i8042.writeCommand(0x60)
    i8042.writeData(0x47)
    i8042.writeCommand(0x20)
    expect([i8042.readStatus(), i8042.readData(), i8042.readStatus()]).toEqual([5, 0x47, 4])
    i8042.writeCommand(0xd0)
    expect(i8042.readData()).toBe(3)
    i8042.writeCommand(0xd1)
    expect(i8042.writeData(0xdf)).toBe(false)
    i8042.writeCommand(0xd1)
    expect(i8042.writeData(0xfe)).toBe(true)
    expect(i8042.writeCommand(0xfe)).toBe(true)
    i8042.restore(i8042.save())
  })
})

describe('the clock', () => {
  it('tells the time in BCD, and in binary when asked', () => {
    const rtc = new Rtc(wasm, () => new Date('2026-11-16T23:45:59Z'))
    rtc.reset()
    const read = (index: number) => {
      rtc.select(index)
      return rtc.read()
    }
    expect([0x32, 9, 8, 7, 4, 2, 0].map(read)).toEqual([0x20, 0x26, 0x11, 0x16, 0x23, 0x45, 0x59])
    expect([read(0x0a) & 0x80, read(0x0b), read(0x0d)]).toEqual([0, 2, 0x80])
    rtc.select(0x0b)
    rtc.write(0x06)
    expect(read(0)).toBe(59)
    rtc.restore(rtc.save())
    expect(() => rtc.restore([0])).toThrow(/rtc/)
  })
})
