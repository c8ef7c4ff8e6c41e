/**
 * Giving up what a process does not need, for good: a guest that breaks out of its VMM finds a process that can start no
 * program, gain no privilege, look into no other process and change nothing of the system. Linux on x86-64; without root.
 */
import { addressOf, lastErrno, sys } from './libc.ts'

const PR_SET_NO_NEW_PRIVS = 38
const SYS_SECCOMP = 317
const SECCOMP_SET_MODE_FILTER = 1
/** Every thread of the process, those that Node started before us too. */
const SECCOMP_FILTER_FLAG_TSYNC = 1
const RLIMIT_CORE = 4

/** System calls by number (arch/x86/entry/syscalls/syscall_64.tbl of Linux) that are answered with EPERM. */
export const DENIED: Readonly<Record<string, number>> = {
  // Programs and other processes.
  ...{ fork: 57, vfork: 58, execve: 59, execveat: 322, ptrace: 101 },
  ...{ process_vm_readv: 310, process_vm_writev: 311, kcmp: 312, process_madvise: 440 },
  // Who we are.
  ...{ setuid: 105, setgid: 106, setreuid: 113, setregid: 114, setgroups: 116, setresuid: 117, setresgid: 119 },
  ...{ setfsuid: 122, setfsgid: 123, capset: 126 },
  // Namespaces, mounts, roots.
  ...{
    unshare: 272,
    setns: 308,
    mount: 165,
    umount2: 166,
    pivot_root: 155,
    chroot: 161,
    open_tree: 428,
    move_mount: 429,
  },
  ...{
    fsopen: 430,
    fsconfig: 431,
    fsmount: 432,
    fspick: 433,
    mount_setattr: 442,
    open_by_handle_at: 304,
    mknod: 133,
    mknodat: 259,
  },
  // The kernel and the machine.
  ...{ init_module: 175, finit_module: 313, delete_module: 176, kexec_load: 246, kexec_file_load: 320, reboot: 169 },
  ...{ bpf: 321, perf_event_open: 298, userfaultfd: 323, keyctl: 250, add_key: 248, request_key: 249 },
  ...{ iopl: 172, ioperm: 173, swapon: 167, swapoff: 168, acct: 163, quotactl: 179, syslog: 103 },
  ...{ settimeofday: 164, clock_settime: 227, adjtimex: 159, clock_adjtime: 305, sethostname: 170, setdomainname: 171 },
}

const BPF_LOAD = 0x20
const BPF_JUMP_EQUAL = 0x15
const BPF_JUMP_AT_LEAST = 0x35
const BPF_RETURN = 0x06
const AUDIT_ARCH_X86_64 = 0xc000_003e
/** The x32 interface: the same calls under other numbers. */
const X32_BIT = 0x4000_0000
const RETURN_ALLOW = 0x7fff_0000
const RETURN_EPERM = 0x0005_0001
/** Offsets in struct seccomp_data. */
const NUMBER = 0
const ARCHITECTURE = 4

/** struct sock_filter[]: everything is allowed but what is denied, and other ways to call the kernel. */
export function denyFilter(numbers: readonly number[]): Uint8Array {
  // The last two instructions: allow, then deny.
  const deny = 3 + numbers.length + 1
  const program: [code: number, jumpTrue: number, jumpFalse: number, k: number][] = [[BPF_LOAD, 0, 0, ARCHITECTURE]]
  const jump = (code: number, k: number, ifTrue: boolean): void => {
    const distance = deny - program.length
    program.push([code, ifTrue ? distance : 0, ifTrue ? 0 : distance, k])
  }
  jump(BPF_JUMP_EQUAL, AUDIT_ARCH_X86_64, false)
  program.push([BPF_LOAD, 0, 0, NUMBER])
  jump(BPF_JUMP_AT_LEAST, X32_BIT, true)
  for (const number of numbers) jump(BPF_JUMP_EQUAL, number, true)
  program.push([BPF_RETURN, 0, 0, RETURN_ALLOW], [BPF_RETURN, 0, 0, RETURN_EPERM])
  const bytes = Buffer.alloc(program.length * 8)
  program.forEach(([code, jumpTrue, jumpFalse, k], i) => {
    bytes.writeUInt16LE(code, i * 8)
    bytes.writeUInt8(jumpTrue, i * 8 + 2)
    bytes.writeUInt8(jumpFalse, i * 8 + 3)
    bytes.writeUInt32LE(k, i * 8 + 4)
  })
  return bytes
}

export interface Jail {
  readonly noNewPrivileges: boolean
  readonly systemCallFilter: boolean
}

/** Locks this process up, as far as the kernel lets it; what it could not do is in the answer. */
export function lockUp(): Jail {
  process.umask(0o077)
  if (process.platform !== 'linux' || process.arch !== 'x64') return { noNewPrivileges: false, systemCallFilter: false }
  // Safe: numbers; and for setrlimit two 64-bit zeros, which it only reads. A core would hold the guest's memory.
  sys.setrlimit(RLIMIT_CORE, new Uint8Array(16))
  const noNewPrivileges = sys.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) === 0
  const filter = denyFilter(Object.values(DENIED))
  const program = Buffer.alloc(16)
  program.writeUInt16LE(filter.length / 8, 0)
  program.writeBigUInt64LE(BigInt(addressOf(filter)), 8)
  // Safe: struct sock_fprog points at `filter`, which lives until after the call; the kernel copies both.
  const systemCallFilter = sys.seccomp(SYS_SECCOMP, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program) === 0
  if (!systemCallFilter) process.stderr.write(`no system call filter: seccomp failed with errno ${lastErrno()}\n`)
  return { noNewPrivileges, systemCallFilter: systemCallFilter && filter.length > 0 }
}
