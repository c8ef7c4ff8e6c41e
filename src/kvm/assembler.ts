/**
 * A tiny assembler for micro-guests: 32-bit code with absolute addresses, only the instructions that they need. Each method
 * appends one instruction and names it as the manual does.
 */
export type Register32 = 'eax' | 'ecx' | 'edx' | 'ebx' | 'esp' | 'ebp' | 'esi' | 'edi'

const REGISTERS: readonly Register32[] = ['eax', 'ecx', 'edx', 'ebx', 'esp', 'ebp', 'esi', 'edi']

const word = (value: number): number[] => [value & 255, (value >>> 8) & 255, (value >>> 16) & 255, (value >>> 24) & 255]
const number = (register: Register32): number => REGISTERS.indexOf(register)

export class Assembler {
  readonly #bytes: number[] = []
  readonly #base: number

  /** `base` is where the code will be. */
  constructor(base: number) {
    this.#base = base
  }

  get bytes(): Uint8Array {
    return Uint8Array.from(this.#bytes)
  }

  /** The address of the next instruction: what a later jump goes back to. */
  get here(): number {
    return this.#base + this.#bytes.length
  }

  raw(...bytes: readonly number[]): this {
    this.#bytes.push(...bytes)
    return this
  }

  /** Fills with NOPs up to `address`. */
  padTo(address: number): this {
    if (address < this.here) throw new RangeError(`the code is already past 0x${address.toString(16)}`)
    while (this.here < address) this.#bytes.push(0x90)
    return this
  }

  mov(register: Register32, value: number): this {
    return this.raw(0xb8 + number(register), ...word(value))
  }

  load(register: Register32, address: number): this {
    return this.raw(0x8b, 0x05 | (number(register) << 3), ...word(address))
  }

  store(address: number, register: Register32): this {
    return this.raw(0x89, 0x05 | (number(register) << 3), ...word(address))
  }

  storeValue(address: number, value: number): this {
    return this.raw(0xc7, 0x05, ...word(address), ...word(value))
  }

  /** Increments the 32-bit word at an address. */
  incMemory(address: number): this {
    return this.raw(0xff, 0x05, ...word(address))
  }

  /** Compares the 32-bit word at an address with a value. */
  cmpMemory(address: number, value: number): this {
    return this.raw(0x81, 0x3d, ...word(address), ...word(value))
  }

  inc(register: Register32): this {
    return this.raw(0x40 + number(register))
  }

  dec(register: Register32): this {
    return this.raw(0x48 + number(register))
  }

  /** OUT of AL, AX or EAX to the port in DX. */
  outDx(size: 1 | 2 | 4): this {
    return size === 1 ? this.raw(0xee) : size === 2 ? this.raw(0x66, 0xef) : this.raw(0xef)
  }

  inDx(size: 1 | 2 | 4): this {
    return size === 1 ? this.raw(0xec) : size === 2 ? this.raw(0x66, 0xed) : this.raw(0xed)
  }

  /** OUT of AL to a port below 256. */
  out(port: number): this {
    return this.raw(0xe6, port)
  }

  /** REP OUTS: ECX items from ESI to the port in DX. */
  repOuts(size: 1 | 2 | 4): this {
    return size === 1 ? this.raw(0xf3, 0x6e) : size === 2 ? this.raw(0x66, 0xf3, 0x6f) : this.raw(0xf3, 0x6f)
  }

  /** REP INS: ECX items from the port in DX to EDI. */
  repIns(size: 1 | 2 | 4): this {
    return size === 1 ? this.raw(0xf3, 0x6c) : size === 2 ? this.raw(0x66, 0xf3, 0x6d) : this.raw(0xf3, 0x6d)
  }

  #short(opcode: number, target: number): this {
    const distance = target - (this.here + 2)
    if (distance < -128 || distance > 127) throw new RangeError('a short jump reaches 128 bytes')
    return this.raw(opcode, distance & 255)
  }

  jmp(target: number): this {
    return this.#short(0xeb, target)
  }

  /** Also JNE. */
  jnz(target: number): this {
    return this.#short(0x75, target)
  }

  hlt(): this {
    return this.raw(0xf4)
  }

  sti(): this {
    return this.raw(0xfb)
  }

  cli(): this {
    return this.raw(0xfa)
  }

  iret(): this {
    return this.raw(0xcf)
  }

  lidt(address: number): this {
    return this.raw(0x0f, 0x01, 0x1d, ...word(address))
  }
}
