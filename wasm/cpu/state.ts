/**
 * A vCPU's state: offsets from its base pointer (`cpu` in cpu.ts; `vcpuStateBase(index)` in src/soft). Constants only,
 * so that AssemblyScript (`./state`) and TypeScript (`./state.ts`) import the same file. Little-endian, all of it in the
 * machine's shared memory, so the debugger, the compiler and save/restore read it in place.
 *
 * Registers are named in predecoded operations (ops.ts) by their BYTE OFFSET here, which fits in a byte: RAX is 0, RCX 8,
 * ... R15 0x78; AH is 1, CH 9, DH 0x11, BH 0x19. Slots 0x80 and 0x88 are pseudo-registers so that an effective address is
 * always load(base) + (load(index) << scale) + disp, with no branches.
 */

/** Spacing of vCPUs' state areas in SOFT_CPU memory, and their largest number. */
export const VCPU_STATE_SIZE = 0x4000
export const MAX_VCPUS = 8

// ---- general registers -------------------------------------------------------------------------------------------
export const S_GPR = 0x000 // 16 x u64
export const S_RAX = 0x00
export const S_RCX = 0x08
export const S_RDX = 0x10
export const S_RBX = 0x18
export const S_RSP = 0x20
export const S_RBP = 0x28
export const S_RSI = 0x30
export const S_RDI = 0x38
export const S_R11 = 0x58
/** Always zero: "no base" and "no index". */
export const S_ZERO = 0x80
/** RIP (CS-relative) of the first instruction of the running block: base of RIP-relative operands. */
export const S_BLOCK_RIP = 0x88
/** CS-relative. Exact only between blocks, after a fault, and outside run(): inside, RIP = BLOCK_RIP + OP_OFFSET. */
export const S_RIP = 0x90

// ---- flags: lazy ---------------------------------------------------------------------------------------------------
// The arithmetic flags (CF PF AF ZF SF OF) follow from the last flag-setting operation: its kind, its result and its
// operands, each SIGN-EXTENDED to 64 bits from the operand size; that makes every formula independent of the size:
//   ZF = result == 0     SF = result < 0     PF = even parity of result's low byte     AF = bit 4 of a ^ b ^ result
//   ADD: CF = result <u a   OF = ((a ^ result) & (b ^ result)) < 0      SUB: CF = a <u b   OF = ((a ^ b) & (a ^ result)) < 0
//   so after CMP: "below" is a <u b, "less" is a <s b, "below or equal" a <=u b, ... without touching the result.
export const S_FLAG_KIND = 0x98 // u32, one of FLAG_*
/** u32: every other RFLAGS bit (TF IF DF IOPL NT RF VM AC VIF VIP ID); bit 1 is set, arithmetic bits are clear. */
export const S_RFLAGS = 0x9c
export const S_FLAG_RES = 0xa0 // i64
export const S_FLAG_A = 0xa8 // i64
export const S_FLAG_B = 0xb0 // i64

/** All six flags are literal RFLAGS bits in FLAG_A. */
export const FLAG_LITERAL = 0
/** AND OR XOR TEST: CF = OF = AF = 0, the rest from the result. */
export const FLAG_LOGIC = 1
export const FLAG_ADD = 2
/** ADC with carry in = 1 (with 0 it is ADD): CF = result <=u a. */
export const FLAG_ADC = 3
export const FLAG_SUB = 4
/** SBB with borrow in = 1 (with 0 it is SUB): CF = a <=u b. */
export const FLAG_SBB = 5
/** INC with CF = 0 / 1 before it (which it keeps); a and b = 1 are stored, otherwise as ADD. */
export const FLAG_INC0 = 6
export const FLAG_INC1 = 7
/** DEC likewise, otherwise as SUB. */
export const FLAG_DEC0 = 8
export const FLAG_DEC1 = 9
/** ZF SF PF from the result; CF OF AF are literal RFLAGS bits in FLAG_A (shifts, rotates, multiplications). */
export const FLAG_SHIFT = 10

// ---- execution control ---------------------------------------------------------------------------------------------
/**
 * u32, written by other threads (atomically) and by slow paths: non-zero makes the vCPU leave the fast loop at the next
 * block head. Bits ATTN_*.
 */
export const S_ATTENTION = 0xb8
/** u32: 1 while the vCPU sleeps in HLT (Atomics.wait on S_ATTENTION). */
export const S_HALTED = 0xbc
/** u64: instructions retired so far = this - S_BUDGET (exact outside run() and in H_SYSTEM and H_MISC handlers). */
export const S_RETIRED = 0xc0
/** u32 CODE mode word, part of the key of blocks: MODE_*. */
export const S_MODE = 0xc8
/** u32: current privilege level. */
export const S_CPL = 0xcc
/** i32: instructions left in this slice of run(). */
export const S_BUDGET = 0xd0
/** u32: address of the running block, and of the operation that faulted. */
export const S_BLOCK = 0xd4
export const S_FAULT_OP = 0xd8
/** u32: why run() returned: EXIT_*. */
export const S_EXIT = 0xdc

export const ATTN_INTERRUPT = 1 // look at the interrupt controllers
export const ATTN_KICK = 2 // return to the host
export const ATTN_MAILBOX = 4 // another vCPU asks for an invalidation
export const ATTN_SHADOW = 8 // an interrupt shadow (STI, MOV SS) or trap flag needs one-instruction care
export const ATTN_TIMER = 16 // a timer deadline may have passed
export const ATTN_HALT = 32 // the vCPU is in HLT or waits for SIPI: do not run instructions

export const MODE_16 = 0
export const MODE_32 = 1
export const MODE_64 = 2
export const MODE_SIZE_MASK = 3
/** Outside 64-bit code: SS.B is set, so the stack pointer is ESP. */
export const MODE_STACK32 = 4
/** Outside 64-bit code: every data segment is flat (base 0, limit 4 GiB, writable): no segment checks needed. */
export const MODE_FLAT = 8
/** Blocks of one instruction (trap flag, debug registers, stepping). */
export const MODE_SINGLE = 16
/** Real mode or virtual 8086: segments load as selector << 4. */
export const MODE_REAL = 32
/** At CPL 3: the user TLB is in use, which compiled code has as a constant. */
export const MODE_USER = 64

// ---- faults --------------------------------------------------------------------------------------------------------
/** u32: non-zero when the running instruction must not complete: FAULT_EXCEPTION or FAULT_EXIT. See memory.ts. */
export const S_FAULT = 0xe0
export const S_FAULT_VECTOR = 0xe4 // u32
export const S_FAULT_ERROR = 0xe8 // u32
/** u32: 1 when FAULT_ERROR is pushed. */
export const S_FAULT_HAS_ERROR = 0xec
/** u64: linear address of a page fault, becomes CR2 at delivery. */
export const S_FAULT_ADDRESS = 0xf0
export const FAULT_EXCEPTION = 1
/** Leave run() with the instruction not executed: it is to be repeated after the host has done something. */
export const FAULT_EXIT = 2

export const EXIT_BUDGET = 0 // the slice is used up
export const EXIT_HALT = 1 // HLT with nothing pending
export const EXIT_KICK = 2
export const EXIT_SHUTDOWN = 3 // triple fault
export const EXIT_STOPPED = 4 // the host asked to stop after an access (power-off, reset)
export const EXIT_INTERNAL = 5
export const EXIT_BREAKPOINT = 6 // host stepping

// ---- current memory-access context ---------------------------------------------------------------------------------
/** u32: address of the TLB in use: the user one at CPL 3, the kernel one otherwise. Kept by every CPL change. */
export const S_TLB = 0xf8
/** u32: non-zero when an x87, MMX or SSE instruction must first be checked against CR0.EM/TS and CR4.OSFXSR. */
export const S_FPU_TRAP = 0xfc

// ---- segments: ES CS SS DS FS GS LDTR TR, 24 bytes each -----------------------------------------------------------
export const S_SEG = 0x100
export const SEG_STRIDE = 24
export const SEG_BASE = 0 // u64
export const SEG_LIMIT = 8 // u32, in bytes, already scaled
/** u32: descriptor bits 40-55: type 0-3, S 4, DPL 5-6, P 7, AVL 12, L 13, D/B 14, G 15. As in src/accel/contract.ts. */
export const SEG_ATTR = 12
export const SEG_SELECTOR = 16 // u32
export const SEG_NULL = 20 // u32: 1 when the selector was null (unusable)
export const ES = 0
export const CS = 1
export const SS = 2
export const DS = 3
export const FS = 4
export const GS = 5
export const LDTR = 6
export const TR = 7
export const S_GDT_BASE = 0x1c0 // u64
export const S_GDT_LIMIT = 0x1c8 // u32
export const S_IDT_BASE = 0x1d0 // u64
export const S_IDT_LIMIT = 0x1d8 // u32

// ---- control, debug, model-specific registers (u64 each) ----------------------------------------------------------
export const S_CR0 = 0x200
export const S_CR2 = 0x208
export const S_CR3 = 0x210
export const S_CR4 = 0x218
export const S_CR8 = 0x220
export const S_EFER = 0x228
export const S_XCR0 = 0x230
export const S_DR0 = 0x238 // DR0..DR3, 8 bytes apart
export const S_DR6 = 0x258
export const S_DR7 = 0x260
export const S_STAR = 0x268
export const S_LSTAR = 0x270
export const S_CSTAR = 0x278
export const S_SFMASK = 0x280
export const S_KERNEL_GS_BASE = 0x288
export const S_SYSENTER_CS = 0x290
export const S_SYSENTER_ESP = 0x298
export const S_SYSENTER_EIP = 0x2a0
export const S_PAT = 0x2a8
export const S_MISC_ENABLE = 0x2b0
export const S_MTRR_DEF = 0x2b8
export const S_TSC_OFFSET = 0x2c0 // i64: guest TSC = clock + offset
export const S_TSC_AUX = 0x2c8
export const S_APIC_BASE = 0x2d0
export const S_TSC_DEADLINE = 0x2d8
export const S_TSC_ADJUST = 0x2e0
export const S_MTRR_FIX = 0x2e8 // 11 x u64
export const S_MTRR_VAR = 0x340 // 16 x u64 (8 pairs)

// ---- x87 and MMX ---------------------------------------------------------------------------------------------------
/** 8 PHYSICAL registers R0..R7, 16 bytes each: u64 mantissa, u16 sign and exponent. ST(i) is R[(TOP + i) & 7]; MMi is R[i]. */
export const S_FPR = 0x400
export const FPR_STRIDE = 16
export const FPR_EXPONENT = 8
export const S_FCW = 0x480 // u16
/** u16, with TOP in bits 11-13 kept up to date only by reads: the live TOP is S_FTOP. */
export const S_FSW = 0x482
/** u32: TOP, 0..7. */
export const S_FTOP = 0x484
/** u32: one bit a physical register: 1 = not empty (FXSAVE's abridged tag; the full tag word is computed on demand). */
export const S_FTAG = 0x488
export const S_FOP = 0x48c // u16: 11 bits
export const S_FIP = 0x490 // u64
export const S_FDP = 0x498 // u64
export const S_FCS = 0x4a0 // u16
export const S_FDS = 0x4a2 // u16
export const S_MXCSR = 0x4a4 // u32

// ---- vector registers: 32 bytes each so that YMM has room ----------------------------------------------------------
export const S_XMM = 0x500
export const XMM_STRIDE = 32

// ---- values handed between slow paths and their callers ------------------------------------------------------------
/** Results wider than a wasm value, and scratch of helpers. 16-byte aligned. */
export const S_TEMP = 0x700 // 64 bytes
export const S_TEMP2 = 0x740 // 64 bytes

// ---- counters (u64 each) for metrics -------------------------------------------------------------------------------
export const S_COUNT_BLOCKS_DECODED = 0x780
export const S_COUNT_TLB_FILLS = 0x788
export const S_COUNT_EXCEPTIONS = 0x790
export const S_COUNT_INTERRUPTS = 0x798
export const S_COUNT_MMIO = 0x7a0
export const S_COUNT_PORT = 0x7a8
export const S_COUNT_SMC = 0x7b0 // blocks invalidated by writes to code
export const S_COUNT_FLUSHES = 0x7b8 // TLB flushes
export const S_COUNT_CACHE_RESETS = 0x7c0 // block cache exhausted and emptied
export const S_COUNT_HALTS = 0x7c8

// ---- constants of this machine's memory, written once by the host --------------------------------------------------
/** u32: size in bytes of RAM below the MMIO hole, and (u32) of RAM from 4 GiB up. */
export const S_RAM_LOW = 0x800
export const S_RAM_HIGH = 0x804
/** u32: offset of guest RAM in the shared memory. */
export const S_RAM_OFFSET = 0x808
export const S_INDEX = 0x80c // u32: number of this vCPU
export const S_TLB_KERNEL = 0x810 // u32 addresses
export const S_TLB_USER = 0x814
export const S_JUMP_CACHE = 0x818
export const S_BLOCK_HASH = 0x81c
export const S_ARENA = 0x820 // u32: start of the decoded-block arena
export const S_ARENA_END = 0x824
export const S_ARENA_NEXT = 0x828 // u32: first free byte
/** u32: address of the code-page map, shared by all vCPUs: 4 bytes a RAM page (see code-pages.ts). */
export const S_CODE_PAGES = 0x82c
/** u32: heads of this vCPU's per-page block lists, 4 bytes a RAM page. */
export const S_PAGE_BLOCKS = 0x830
/** u32: bumped whenever translations may have changed; part of jump-cache keys. Of the lower half; see S_EPOCH_HIGH. */
export const S_EPOCH = 0x834
export const S_CPUS = 0x838 // u32
export const S_CHIPS = 0x83c // u32: address of the interrupt controllers' and timers' shared state
/** u32: one bit a page, of RAM in region order, when the dirty log is on; else 0. */
export const S_DIRTY_MAP = 0x840
/** u32: bit 0: deterministic time. */
export const S_OPTIONS = 0x844
export const S_TLB_USED = 0x848 // u32: entries in the list of filled TLB slots since the last flush
export const S_SHADOW = 0x84c // u32: 1 = interrupts are held off for one instruction
export const S_NMI_PENDING = 0x850
export const S_NMI_MASKED = 0x854
export const S_MP_STATE = 0x858 // u32: 0 running, 1 halted, 2 waiting for SIPI
export const S_SIPI_VECTOR = 0x85c
export const S_DR_PENDING = 0x860 // u32: DR6 bits for a #DB trap after this instruction
export const S_TSC_KHZ = 0x864
export const S_RAM_PAGES = 0x868 // u32: pages of RAM, low and high
/** u32: bumped when blocks were dropped because their code was written: the running block may be among them. */
export const S_SMC_STAMP = 0x86c
export const S_TLB_HUGE = 0x870 // u32: 1 when the TLBs hold part of a 1 GiB page
export const S_MAILBOX_HEAD = 0x874 // u32, atomic
export const S_MAILBOX_TAIL = 0x878
export const S_STOP = 0x87c // u32: 1 when the host asked to stop after this instruction
/** u32: epoch, privilege and mode of jump-cache entries that are valid now: for RIPs of the lower half, and of the upper. */
export const S_JUMP_KEY = 0x900
export const S_JUMP_KEY_HIGH = 0x904
/** u32: the epoch of the upper half, which CR3 writes leave alone as long as all its code is on global pages (S_HIGH_LOCAL = 0). */
export const S_EPOCH_HIGH = 0x908
export const S_HIGH_LOCAL = 0x90c
/** A filter of 2 MiB regions with large pages in the TLBs: 128 bytes. */
export const S_LARGE_FILTER = 0x880
/** Scratch numbers of the transcendental instructions (widefloat.ts): 512 bytes. */
export const S_FPU_SCRATCH = 0x3000
/** A copy of a memory operand that cannot be worked on in place (rmw.ts): data, address, size. */
export const S_BOUNCE = 0x910
export const S_BOUNCE_ADDRESS = 0x920 // u64
export const S_BOUNCE_SIZE = 0x928 // u32
export const S_TF_ARMED = 0x92c // u32: 1 while an instruction runs that began with TF set
export const S_CODE_BREAK_SKIP = 0x930 // u32: 1 = do not take an instruction breakpoint at this RIP again
export const S_SPEC_CTRL = 0x938 // u64
/** f64 nanoseconds: when the local APIC timer fires next; infinity when it does not. */
export const S_TIMER_DUE = 0x940
/** f64 nanoseconds: when it was started, and its period (one-shot and periodic). */
export const S_TIMER_START = 0x948
export const S_TIMER_PERIOD = 0x950
/** f64 nanoseconds added to time in deterministic mode: idle time that was skipped. */
export const S_IDLE_SKIPPED = 0x958
export const S_RDRAND = 0x960 // u64: state of the random generator
export const S_INIT_PENDING = 0x968 // u32
export const S_SIPI_PENDING = 0x96c // u32
export const S_DROP_WRITERS = 0x970 // u32: 1 = give up write translations (the dirty log was read)
/** u32 in vCPU 0: taken while a vCPU does an atomic access that WebAssembly cannot (unaligned, 16 bytes). */
export const S_BUS_LOCK = 0x934
// ---- tier 1 (jit.ts, src/soft/jit); none of it is saved ----
/** u32: executions after which a block is reported as hot; 0 = never. */
export const S_JIT_THRESHOLD = 0xa00
/** u32: blocks in the queue of hot blocks. */
export const S_JIT_QUEUED = 0xa04
export const S_JIT_ENTRIES = 0xa08 // u64: entries into compiled code
export const S_JIT_RETIRED = 0xa10 // u64: instructions retired in it
/** u32: address of the cache of compiled entries by RIP (jit.ts). */
export const S_REGION_CACHE = 0xa18
/** u32: a record in the middle of block S_BLOCK at which the interpreter goes on where compiled code left off (S_RIP: start of the page); or 0. */
export const S_RESUME = 0xa1c
export const S_COUNT_RESUMES = 0xa20 // u64
/** u64: the count of exceptions at which run() returns. */
export const S_MOST_EXCEPTIONS = 0xa28
/** u32: address of the proofs, which say where pages of code are (jit.ts). */
export const S_PROOFS = 0xa30
/** Hot blocks: 128 x u32, and 128 x u64, the RIPs that they had. */
export const S_JIT_QUEUE = 0x3400
export const S_JIT_QUEUE_RIPS = 0x3a00
export const JIT_QUEUE_LENGTH = 128
/** Of entries of the region cache, of 16 bytes: RIP, slot of the table << 8 and number of the entry, key. */
export const REGION_CACHE_ENTRIES = 16384
/**
 * A proof, of 16 bytes, for the RAM pages of a number modulo PROOFS: which of them is at which linear page as long as the key is the jump cache's, and
 * how often decoded code was overwritten in any of them.
 */
export const PROOFS = 4096
/** u64: linear address of the page | number of the RAM page / PROOFS. */
export const PROOF_AT = 0
export const PROOF_KEY = 8 // u32
export const PROOF_WRITES = 12 // u32
/** Which pages have code in the jump cache, by a hash: 256 bytes of bits for the lower half, 256 for the upper. */
export const S_CODE_FILTER = 0x3800
/** Local APIC: 1 KiB, registers as in xAPIC space divided by 4 (see apic.ts). */
export const S_APIC = 0xc00
/** List of filled TLB slots since the last flush: 512 x u32. */
export const S_TLB_LIST = 0x1000
export const TLB_LIST_LENGTH = 512
/** Requests from other vCPUs (code-pages.ts): 256 x u64. */
export const S_MAILBOX = 0x1800
export const MAILBOX_LENGTH = 256
/** In a message: the page was written, so drop the blocks there. Without it: the page has code now, so give up writing to it unseen. */
export const MESSAGE_WRITTEN = 0x8000_0000

// ---- chips that all vCPUs share: offsets from S_CHIPS's address ----------------------------------------------------
/** u32: interrupt lines raised by devices and not yet routed, a bit each; any thread sets bits (then ATTN_INTERRUPT on vCPU 0). */
export const C_LINES = 0x000
export const C_IOAPIC_SELECT = 0x004
export const C_IOAPIC_ID = 0x008
export const C_PORT61 = 0x00c
export const C_PIT_DUE = 0x010 // f64 ns
export const C_CMOS_INDEX = 0x018
export const C_PIC = 0x020 // 2 x 16 bytes
export const C_IOAPIC_TABLE = 0x040 // 24 x u64
export const C_PIT = 0x100 // 3 x 32 bytes
export const C_CMOS = 0x180 // 128 bytes
export const CHIPS_SIZE = 0x200
