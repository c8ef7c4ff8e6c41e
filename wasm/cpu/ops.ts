/**
 * Predecoded instructions: constants only, shared by AssemblyScript and TypeScript (see state.ts).
 *
 * A block is a run of instructions in one physical page that is entered at its top: a 64-byte header, then one 32-byte
 * record an instruction, in the shared memory. It is keyed by guest-physical address and mode word. Nothing in it
 * depends on the linear address: RIP-relative operands use S_BLOCK_RIP as base with the distance from the block's start folded into
 * the displacement, and branch targets are relative to the block's start. So a record needs no x86 decoding to translate.
 *
 *     header 64 B | record 0 | record 1 | ... | record n-1 (the only one that may transfer control)
 *
 * Blocks are allocated upwards in an arena and never move. A block that was overwritten is marked invalid (BLK_VALID = 0)
 * and stays unused until the arena is full and emptied as a whole, so a stale pointer is always a readable header.
 */

// ---- block header ---------------------------------------------------------------------------------------------------
export const BLK_HOST = 0 // u32 shared-memory address of the first byte of its code (stands for the guest-physical address)
export const BLK_PAGE = 4 // u32 number of its RAM page
export const BLK_MODE = 8 // u32 mode word (MODE_* in state.ts)
export const BLK_COUNT = 12 // u16 records
export const BLK_LENGTH = 14 // u16 bytes of guest code (within one page, or two for a last instruction that crosses)
export const BLK_RUNS = 16 // u32 executions, for choosing hot blocks
export const BLK_VALID = 20 // u32 1, or 0 once its code was overwritten
export const BLK_PAGE_NEXT = 24 // u32 next block that starts in this page
export const BLK_HASH_NEXT = 28 // u32 next block in this hash bucket
export const BLK_LINK_TAKEN = 32 // u32 block at the direct branch's target (same page), or 0
export const BLK_LINK_NEXT = 36 // u32 block that follows (same page), or 0
export const BLK_JIT = 40 // u32 compiled code's entry, or 0 (tier 1's business)
export const BLK_JIT_STAMP = 44 // u32
export const BLK_MISSES = 48 // u32 memory accesses in compiled code that the TLB did not serve
/** u32: 1 = one look at the TLB for several accesses (src/soft/jit/accesses.ts) fails too often here: a page ends between them. */
export const BLK_APART = 52
/** u32: in a header without records that stands for the second part of an instruction across two pages, in that page's list: its block. */
export const BLK_TWIN = 56
/** u32: shared-memory address of that second part, in the block itself; else 0. */
export const BLK_SECOND = 60
export const BLK_HEADER_SIZE = 64
/** Most instructions of one block. */
export const BLK_MAX_OPS = 64

// ---- record ---------------------------------------------------------------------------------------------------------
export const OP_HANDLER = 0 // u16 H_*
export const OP_LENGTH = 2 // u8 bytes of the instruction
export const OP_FLAGS = 3 // u8 OPF_*
/** u8 byte offset in the state of the first register operand (destination, ModRM.reg); 8-bit ones may be offset + 1 (AH). */
export const OP_DST = 4
/** u8 the same for the second register operand (source, ModRM.rm in register form). */
export const OP_SRC = 5
export const OP_BASE = 6 // u8 byte offset of the base register's slot; S_ZERO if none, S_BLOCK_RIP if RIP-relative
export const OP_INDEX = 7 // u8 byte offset of the index register's slot; S_ZERO if none
export const OP_SCALE = 8 // u8 0..3
export const OP_SEG = 9 // u8 ES..GS: the segment that applies (for #SS, and for EA kinds that add a base)
export const OP_EA = 10 // u8 EA_*: how to form the address
export const OP_SIZE = 11 // u8 log2 of the operand size in bytes: 0..4
export const OP_AUX = 12 // u8 condition code, ALU or shift operation, second-level opcode
export const OP_AUX2 = 13 // u8
export const OP_OFFSET = 14 // u16 distance of the instruction's first byte from the block's start
export const OP_IMM = 16 // i64 immediate, sign-extended; branch target as distance from the block's start
export const OP_DISP = 24 // i64 displacement
export const OP_RECORD_SIZE = 32

export const OPF_LOCK = 1
export const OPF_REPNE = 2
export const OPF_REP = 4
/** 16-bit or 32-bit code's near transfers wrap at the operand size. */
export const OPF_O16 = 8
export const OPF_REX_W = 16
/** Address size is 4 in OP_AUX2-less forms (string instructions, LOOP, JCXZ): counts in ECX. With A16: CX. */
export const OPF_A32 = 32
export const OPF_A16 = 64

/** base + (index << scale) + disp, 64 bits. */
export const EA_FLAT64 = 0
/** The same plus the base of FS or GS. */
export const EA_SEG64 = 1
/** 64-bit code with address-size prefix: truncated to 32 bits, then plus the base of FS or GS. */
export const EA_TRUNC32 = 2
/** 16/32-bit code: offset wraps at 32 bits, segment base added, limit and rights checked, linear wraps at 32 bits. */
export const EA_SEG32 = 3
/** The same with an offset that wraps at 16 bits. */
export const EA_SEG16 = 4
/** 32-bit code, MODE_FLAT: offset wraps at 32 bits, nothing else to do. */
export const EA_FLAT32 = 5
/** No memory operand: OP_SRC (ModRM.rm) is a register. */
export const EA_REGISTER = 255

// ---- handlers -------------------------------------------------------------------------------------------------------
// Groups are laid out so that a compiler can take an id apart by arithmetic. Sizes are 0: 8, 1: 16, 2: 32, 3: 64 bits.

/** The block ends without a transfer (page end, length limit): continue at BLOCK_RIP + OP_IMM. */
export const H_FALL = 0

/** Two-operand arithmetic: id = H_ALU + (op * 5 + form) * 4 + size; op as in the instruction set. */
export const H_ALU = 4
export const ALU_ADD = 0
export const ALU_OR = 1
export const ALU_ADC = 2
export const ALU_SBB = 3
export const ALU_AND = 4
export const ALU_SUB = 5
export const ALU_XOR = 6
export const ALU_CMP = 7
export const ALU_TEST = 8
/** DST = DST op SRC. */
export const FORM_RR = 0
/** DST = DST op imm. */
export const FORM_RI = 1
/** DST = DST op [ea]. */
export const FORM_RM = 2
/** [ea] = [ea] op SRC. (OPF_LOCK: atomically, in the same id.) */
export const FORM_MR = 3
/** [ea] = [ea] op imm. */
export const FORM_MI = 4
export const H_ALU_END = 184 // 4 + 9 * 5 * 4

/** MOV: id = H_MOV + form * 4 + size: RR, RI, RM (load), MR (store), MI. */
export const H_MOV = 184
/** LEA, id + size (1..3): DST = ea without segment base. */
export const H_LEA = 204
/** MOVZX DST(OP_SIZE) from 8 / 16 bits: register, register, memory, memory. */
export const H_MOVZX_R8 = 208
export const H_MOVZX_R16 = 209
export const H_MOVZX_M8 = 210
export const H_MOVZX_M16 = 211
/** MOVSX from 8 / 16 / 32 bits: register forms, then memory forms. */
export const H_MOVSX_R8 = 212
export const H_MOVSX_R16 = 213
export const H_MOVSX_R32 = 214
export const H_MOVSX_M8 = 215
export const H_MOVSX_M16 = 216
export const H_MOVSX_M32 = 217
/** 64-bit PUSH/POP of a register or immediate; other sizes go through H_STACK. */
export const H_PUSH64 = 218
export const H_POP64 = 219
export const H_PUSHI64 = 220
/** 221 is unused: Jcc is at H_JCC. */
/** JMP rel: OP_IMM = target. */
export const H_JMP = 222
/** 64-bit CALL rel / RET / RET imm16 / JMP and CALL through register (OP_SRC) or memory. Others go through H_BRANCH. */
export const H_CALL64 = 223
export const H_RET64 = 224
export const H_RETI64 = 225
export const H_JMPR64 = 226
export const H_JMPM64 = 227
export const H_CALLR64 = 228
export const H_CALLM64 = 229
/** SETcc register / memory, OP_AUX = condition. */
export const H_SETCC_R = 230
export const H_SETCC_M = 231
/** CMOVcc DST, SRC / [ea] (the load happens in any case), OP_AUX = condition, OP_SIZE. */
export const H_CMOV_R = 232
export const H_CMOV_M = 233
/** INC, DEC, NOT, NEG of a register (OP_DST): id + size. */
export const H_INC_R = 234
export const H_DEC_R = 238
export const H_NOT_R = 242
export const H_NEG_R = 246
/** The same on memory (LOCK possible): OP_AUX = 0 INC, 1 DEC, 2 NOT, 3 NEG; OP_SIZE. */
export const H_UNARY_M = 250
/** Shifts of a register (OP_DST) by imm (OP_IMM, already masked, non-zero): OP_AUX = 0 ROL 1 ROR 2 RCL 3 RCR 4 SHL 5 SHR 7 SAR. */
export const H_SHIFT_RI = 251
export const H_SHIFT_RCL = 252 // by CL
export const H_SHIFT_MI = 253
export const H_SHIFT_MCL = 254
/** Hot single shifts by immediate, 32 and 64 bits: SHL, SHR, SAR, ROR, ROL of OP_DST by OP_IMM (non-zero). */
export const H_SHL32 = 255
export const H_SHL64 = 256
export const H_SHR32 = 257
export const H_SHR64 = 258
export const H_SAR32 = 259
export const H_SAR64 = 260
export const H_ROL32 = 261
export const H_ROL64 = 262
export const H_ROR32 = 263
export const H_ROR64 = 264
/** IMUL DST, SRC|[ea], imm? : OP_AUX = 0 two operands (DST *= src), 1 three operands (DST = src * imm). */
export const H_IMUL_R = 265
export const H_IMUL_M = 266
/** NOP, PAUSE (OP_AUX = 1), ENDBR, prefetches, hints. */
export const H_NOP = 267
/** MOV through moffs and others share H_MOV. XCHG reg, reg. */
export const H_XCHG_RR = 268
/** XCHG [ea], reg: always atomic. */
export const H_XCHG_M = 269
/** CBW/CWDE/CDQE (OP_SIZE = destination), CWD/CDQ/CQO. */
export const H_CBW = 270
export const H_CWD = 271
/** BSWAP OP_DST, OP_SIZE. */
export const H_BSWAP = 272
/** MUL, IMUL, DIV, IDIV of the accumulator: OP_AUX = 4, 5, 6, 7; register OP_SRC or memory, OP_SIZE. */
export const H_MULDIV = 273
/** SHLD/SHRD: OP_AUX = 0/1; OP_AUX2 = 1 count in CL, else OP_IMM; destination rm, source OP_DST. */
export const H_DSHIFT = 274
/** BT BTS BTR BTC: OP_AUX = 0..3; OP_AUX2 = 1: index is OP_IMM, else register OP_DST; operand rm. */
export const H_BIT = 275
/** BSF BSR TZCNT LZCNT POPCNT: OP_AUX = 0..4; DST, rm, OP_SIZE. */
export const H_SCAN = 276
/** CMPXCHG rm, OP_DST. */
export const H_CMPXCHG = 277
/** CMPXCHG8B (OP_SIZE 2) / 16B (OP_SIZE 3). */
export const H_CMPXCHG8B = 278
/** XADD rm, OP_DST. */
export const H_XADD = 279
/** PUSH/POP of any other kind (PUSHA, PUSHF, segment registers, memory, ENTER, LEAVE, 16/32-bit): OP_AUX = STACK_*. */
export const H_STACK = 280
/** LEAVE in 64-bit code. */
export const H_LEAVE64 = 281
/** String instructions: OP_AUX = STR_*, OP_SIZE, REP flags, OP_SEG = source segment, OPF_A32/A16. */
export const H_STRING = 282
/** Near transfers not above (16/32-bit code, LOOPcc, JCXZ): OP_AUX = BR_*. Ends a block. */
export const H_BRANCH = 283
/** CLC STC CMC CLD STD LAHF SAHF SALC: OP_AUX = 0..7. */
export const H_FLAGOP = 284
/** AAA AAS DAA DAS AAM AAD XLAT and BMI1/BMI2/ADX/MOVBE/CRC32: OP_AUX = MISC_*. */
export const H_MISC = 285
/** Anything privileged, serialising, far or rare: OP_AUX = SYS_*. Ends a block; RIP is stored before it runs. */
export const H_SYSTEM = 286
/** x87: OP_IMM = ((opcode & 7) << 8) | ModRM. */
export const H_X87 = 287
/** MMX and SSE: OP_IMM = imm8 | selector << 16 (see VECTOR_SELECTOR below). */
export const H_VECTOR = 288
/** Undefined opcode: raises #UD. OP_AUX = 1: #GP(0) (instruction longer than 15 bytes). OP_AUX = 2: code fetch faulted (fault repeated by fetching again). */
export const H_UNDEFINED = 289
/** LOCK ADD OR ADC SBB AND SUB XOR on memory: OP_AUX = ALU_*; OP_AUX2 = 1: OP_IMM, else register OP_SRC; OP_SIZE. */
export const H_ALU_LOCKED = 290
/** The block's code was overwritten while it ran: continue at BLOCK_RIP + OP_OFFSET. Put over every record of a dropped block. */
export const H_STALE = 291
/**
 * Jcc: id = H_JCC + condition (0..15 as in the instruction set; also in OP_AUX). OP_IMM = target, fall-through is at OFFSET + LENGTH;
 * OP_SIZE other than 3: both wrap at that size.
 */
export const H_JCC = 292
export const H_COUNT = 308

// OP_AUX of H_STACK. Operand size OP_SIZE; stack-pointer size from the mode word.
export const STACK_PUSH_R = 0 // OP_SRC
export const STACK_PUSH_I = 1
export const STACK_PUSH_M = 2
export const STACK_POP_R = 3 // OP_DST
export const STACK_POP_M = 4 // the address is formed after RSP was raised
export const STACK_PUSHF = 5
export const STACK_PUSH_SEG = 6 // OP_AUX2 = segment
export const STACK_PUSHA = 7
export const STACK_POPA = 8
export const STACK_ENTER = 9 // OP_IMM = size | level << 16
export const STACK_LEAVE = 10

// OP_AUX of H_STRING.
export const STR_MOVS = 0
export const STR_CMPS = 1
export const STR_STOS = 2
export const STR_LODS = 3
export const STR_SCAS = 4
export const STR_INS = 5
export const STR_OUTS = 6

// OP_AUX of H_BRANCH: near transfers outside the 64-bit fast ones. Targets wrap at OP_SIZE.
export const BR_CALL = 0 // OP_IMM target
export const BR_RET = 1 // OP_IMM bytes to release
export const BR_JMP_RM = 2
export const BR_CALL_RM = 3
export const BR_LOOPNE = 4
export const BR_LOOPE = 5
export const BR_LOOP = 6
export const BR_JCXZ = 7

// OP_AUX of H_FLAGOP.
export const FLAGOP_CLC = 0
export const FLAGOP_STC = 1
export const FLAGOP_CMC = 2
export const FLAGOP_CLD = 3
export const FLAGOP_STD = 4
export const FLAGOP_LAHF = 5
export const FLAGOP_SAHF = 6
export const FLAGOP_SALC = 7

// OP_AUX of H_MISC.
export const MISC_DAA = 0
export const MISC_DAS = 1
export const MISC_AAA = 2
export const MISC_AAS = 3
export const MISC_AAM = 4
export const MISC_AAD = 5
export const MISC_XLAT = 6
export const MISC_MOVBE_LOAD = 7
export const MISC_MOVBE_STORE = 8
export const MISC_CRC32 = 9 // OP_SIZE of the source; OP_DST is 32 bits (zero-extended)
export const MISC_BOUND = 10
export const MISC_ARPL = 11
export const MISC_MOV_FROM_SEG = 12 // OP_AUX2 = segment; register (OP_SIZE) or memory (16 bits)
export const MISC_SLDT = 13
export const MISC_STR = 14
export const MISC_VERR = 15
export const MISC_VERW = 16
export const MISC_LAR = 17
export const MISC_LSL = 18
export const MISC_SMSW = 19
export const MISC_SGDT = 20
export const MISC_SIDT = 21
export const MISC_RDPMC = 24
export const MISC_XGETBV = 25
export const MISC_RDPID = 26
export const MISC_FXSAVE = 27
export const MISC_FXRSTOR = 28
export const MISC_LDMXCSR = 29
export const MISC_STMXCSR = 30
export const MISC_XSAVE = 31
export const MISC_XRSTOR = 32
export const MISC_CLFLUSH = 33
export const MISC_FENCE = 34
export const MISC_RDRAND = 35
export const MISC_RDFSBASE = 36 // OP_AUX2 = 0 RDFSBASE 1 RDGSBASE 2 WRFSBASE 3 WRGSBASE
export const MISC_ADCX = 37
export const MISC_ADOX = 38
export const MISC_CPUID = 39
export const MISC_XSAVEC = 40
export const MISC_XSAVEOPT = 41

// OP_AUX of H_SYSTEM: each ends its block, with S_RIP already at the NEXT instruction (a fault puts it back).
export const SYS_HLT = 0
export const SYS_CLI = 1
export const SYS_STI = 2
export const SYS_IN = 3 // OP_AUX2 = 1: port is OP_IMM, else DX
export const SYS_OUT = 4
export const SYS_INT = 5 // OP_IMM = vector; OP_AUX2 = 0 INT n, 1 INT3, 2 INTO, 3 INT1
export const SYS_IRET = 6
export const SYS_CALL_FAR = 7 // OP_IMM = offset | selector << 32
export const SYS_JMP_FAR = 8
export const SYS_CALL_FAR_M = 9
export const SYS_JMP_FAR_M = 10
export const SYS_RET_FAR = 11 // OP_IMM = bytes to release
export const SYS_SYSCALL = 12
export const SYS_SYSRET = 13
export const SYS_SYSENTER = 14
export const SYS_SYSEXIT = 15
export const SYS_LLDT = 16
export const SYS_LTR = 17
export const SYS_LGDT = 18
export const SYS_LIDT = 19
export const SYS_LMSW = 20
export const SYS_INVLPG = 21
export const SYS_SWAPGS = 22
export const SYS_XSETBV = 23
export const SYS_CLTS = 24
export const SYS_WBINVD = 25
export const SYS_MOV_FROM_CR = 26 // OP_AUX2 = number; OP_SRC register
export const SYS_MOV_TO_CR = 27
export const SYS_MOV_FROM_DR = 28
export const SYS_MOV_TO_DR = 29
export const SYS_WRMSR = 30
export const SYS_RDMSR = 31
export const SYS_MOV_TO_SEG = 32 // OP_AUX2 = segment
export const SYS_POP_SEG = 33
export const SYS_LOAD_FAR = 34 // LDS LES LFS LGS LSS: OP_AUX2 = segment
export const SYS_POPF = 35
export const SYS_INVPCID = 36
export const SYS_MONITOR = 37
export const SYS_MWAIT = 38
export const SYS_RDTSC = 39
export const SYS_RDTSCP = 40

// x87, MMX and SSE reach x87.ts / sse.ts through two functions (bodies by the owner of those files):
//   execX87(op: usize, ea: u64): void        execVector(op: usize, ea: u64): void
// `ea` is the linear address of a memory operand (meaningless when OP_EA is EA_REGISTER). In the record:
//   OP_DST  ModRM.reg with REX.R, OP_SRC  ModRM.rm with REX.B (register form), both PLAIN NUMBERS 0..15, not offsets;
//   OP_SIZE 3 with REX.W, 2 otherwise; OP_IMM bits 0-7 imm8; bits 16-31 the selector.
// Selector: bits 0-7 opcode, 8-9 mandatory prefix (0 none, 1 66, 2 F3, 3 F2), 10-11 map (0: 0F, 1: 0F38, 2: 0F3A).
// They check CR0/CR4 themselves with fpuTrap*() of fault.ts, raise through raise*() of fault.ts, and commit registers only
// after the last access that can fault.
export const SELECTOR_SHIFT = 16
export const PREFIX_NONE = 0
export const PREFIX_66 = 1
export const PREFIX_F3 = 2
export const PREFIX_F2 = 3
