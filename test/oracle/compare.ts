/** Compares what two processors made of a case, with undefined parts left out, and prints a difference for people. */
import { spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { GENERAL_REGISTERS } from '../../src/accel/contract.ts'
import * as layout from './case.ts'

/** CF PF AF ZF SF TF DF OF. RF is set by faults on real processors only; IF, IOPL and ID are the system's. */
const COMPARED_FLAGS = 0xdd5

const RSI = GENERAL_REGISTERS.indexOf('rsi')
const RDI = GENERAL_REGISTERS.indexOf('rdi')

/** What code at CPL 3 may read: address and pages. */
const MAPPED = [
  [BigInt(layout.DATA_BASE), layout.DATA_PAGES],
  [BigInt(layout.READ_ONLY_BASE), 1],
  [BigInt(layout.CODE_BASE), 256],
] as const

const hex = (value: bigint | number): string => `0x${value.toString(16)}`

/** What differs, in words; empty when nothing does. `a` is ours, `b` the hardware's. */
export function differences(info: layout.CaseInfo, a: DataView, b: DataView): string[] {
  const found: string[] = []
  const check = (what: string, ours: bigint | number, theirs: bigint | number): void => {
    if (ours !== theirs) found.push(`${what}: ${hex(ours)}, hardware has ${hex(theirs)}`)
  }
  check('vector', a.getUint32(layout.TRAP, true), b.getUint32(layout.TRAP, true))
  check('rip', a.getBigUint64(layout.RIP, true), b.getBigUint64(layout.RIP, true))
  const vector = b.getUint32(layout.TRAP, true)
  if (vector === 14) {
    // Whether a page of the kernel's half is present is the host kernel's business.
    const hostOwned = b.getBigUint64(layout.CR2, true) >= 0x7fff_ffff_f000n ? 1 : 0
    check('error code', a.getUint32(layout.ERROR, true) & ~hostOwned, b.getUint32(layout.ERROR, true) & ~hostOwned)
    // AMD's FXSAVE touches the end of the area first, FNSAVE and FLDENV a place in the middle.
    const [ours, theirs] = [a.getBigUint64(layout.CR2, true), b.getBigUint64(layout.CR2, true)]
    const isFree =
      info.tolerance === 'fxsave' ||
      info.tolerance === 'area' ||
      (info.tolerance === 'operands' && isAbsentOperand(b, ours) && isAbsentOperand(b, theirs))
    if (!isFree) check('cr2', ours, theirs)
  }
  for (const [i, name] of GENERAL_REGISTERS.entries())
    check(name, a.getBigUint64(i * 8, true), b.getBigUint64(i * 8, true))
  const mask = COMPARED_FLAGS & ~info.undefinedFlags
  check('flags', a.getUint32(layout.RFLAGS, true) & mask, b.getUint32(layout.RFLAGS, true) & mask)
  compareFpu(info, a, b, check, found)
  for (let i = 0; i < layout.WINDOW_SIZE; i += 8) {
    const at = layout.WINDOW + i
    // AMD has a bit 17 in MXCSR (misaligned SSE operands), so its mask differs.
    if (
      info.tolerance === 'fxsave' &&
      a.getUint32(at, true) === b.getUint32(at, true) &&
      a.getUint32(at + 4, true) === 0xffff
    )
      continue
    if (a.getBigUint64(at, true) !== b.getBigUint64(at, true))
      check(`[${hex(layout.WINDOW_BASE + i)}]`, a.getBigUint64(at, true), b.getBigUint64(at, true))
  }
  check('memory elsewhere', a.getBigUint64(layout.OUTSIDE, true), b.getBigUint64(layout.OUTSIDE, true))
  return found
}

/** Whether an address is within the eight bytes at RSI or at RDI, and nothing is mapped there: a fault that the instruction may report. */
function isAbsentOperand(view: DataView, address: bigint): boolean {
  const isMapped = MAPPED.some(([base, pages]) => address >= base && address < base + BigInt(pages * 4096))
  const isOperand = [RSI, RDI].some(register => {
    const distance = address - view.getBigUint64(register * 8, true)
    return distance >= 0n && distance < 8n
  })
  return isOperand && !isMapped
}

type Check = (what: string, ours: bigint | number, theirs: bigint | number) => void

function compareFpu(info: layout.CaseInfo, a: DataView, b: DataView, check: Check, found: string[]): void {
  const fx = layout.FX
  check('fcw', a.getUint16(fx, true), b.getUint16(fx, true))
  // C1, the precision and the underflow flag say how an approximation was made.
  const ignored = info.tolerance === 'x87' ? 0x230 : 0
  check('fsw', a.getUint16(fx + 2, true) & ~ignored, b.getUint16(fx + 2, true) & ~ignored)
  check('ftw', a.getUint8(fx + 4), b.getUint8(fx + 4))
  check('mxcsr', a.getUint32(fx + 24, true), b.getUint32(fx + 24, true))
  for (let i = 0; i < 8; i++) {
    const at = fx + 32 + i * 16
    const ours = a.getBigUint64(at, true)
    const theirs = b.getBigUint64(at, true)
    const near = info.tolerance === 'x87' && ours - theirs <= 2n && theirs - ours <= 2n
    if (!near) check(`st${i} mantissa`, ours, theirs)
    const oursTop = a.getUint16(at + 8, true)
    const theirsTop = b.getUint16(at + 8, true)
    if (!near || oursTop !== theirsTop) check(`st${i} exponent`, oursTop, theirsTop)
  }
  for (let i = 0; i < 64; i++) {
    const at = fx + 160 + i * 4
    const ours = a.getUint32(at, true)
    const theirs = b.getUint32(at, true)
    if (ours === theirs) continue
    if (info.tolerance === 'approximate' && closeSingles(a.getFloat32(at, true), b.getFloat32(at, true))) continue
    found.push(`xmm${i >> 2}[${i & 3}]: ${hex(ours)}, hardware has ${hex(theirs)}`)
  }
}

/** Both within 1.5 * 2^-12 of the truth. */
const closeSingles = (a: number, b: number): boolean => Math.abs(a - b) <= Math.abs(b) * 3 * 2 ** -12

/** The instruction in words, when objdump is there. */
export function disassemble(code: Uint8Array, rip: bigint): string {
  const folder = mkdtempSync(join(tmpdir(), 'vitrine-oracle-'))
  try {
    const file = join(folder, 'code')
    writeFileSync(file, code)
    const args = ['-D', '-b', 'binary', '-m', 'i386:x86-64', '-M', 'intel', `--adjust-vma=${hex(rip)}`, file]
    const { status, stdout } = spawnSync('objdump', args, { encoding: 'utf8' })
    if (status !== 0) return '(no objdump)'
    return stdout
      .split('\n')
      .filter(line => /^ *[0-9a-f]+:\t/.test(line))
      .map(line => line.split('\t').slice(2).join(' ').trim())
      .filter(text => text !== '')
      .join('; ')
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Everything about a failed case. */
export function describe(batch: layout.Batch, index: number, found: readonly string[]): string {
  const record = batch.record(index)
  const view = new DataView(record.buffer, record.byteOffset, record.byteLength)
  const code = batch.code(index)
  const lines = [
    `${batch.infos[index]!.name}: ${Buffer.from(code).toString('hex')}  ${disassemble(code, view.getBigUint64(layout.RIP, true))}`,
    `  rip=${hex(view.getBigUint64(layout.RIP, true))} rflags=${hex(view.getBigUint64(layout.RFLAGS, true))} fcw=${hex(view.getUint16(layout.FX, true))} fsw=${hex(view.getUint16(layout.FX + 2, true))} ftw=${hex(view.getUint8(layout.FX + 4))} mxcsr=${hex(view.getUint32(layout.FX + 24, true))}`,
    `  ${GENERAL_REGISTERS.map((name, i) => `${name}=${hex(view.getBigUint64(i * 8, true))}`).join(' ')}`,
  ]
  const vector = (at: number): string =>
    `${view
      .getBigUint64(at + 8, true)
      .toString(16)
      .padStart(16, '0')}_${view.getBigUint64(at, true).toString(16).padStart(16, '0')}`
  if (/x87|vector|emms|fx|mxcsr/.test(batch.infos[index]!.name)) {
    for (let i = 0; i < 8; i++)
      lines.push(
        `  st${i}=${vector(layout.FX + 32 + i * 16).slice(12)} xmm${i}=${vector(layout.FX + 160 + i * 16)} xmm${i + 8}=${vector(layout.FX + 288 + i * 16)}`,
      )
  }
  return [...lines, ...found.map(text => `  * ${text}`)].join('\n')
}
