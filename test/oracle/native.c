/*
 * The native side of the CPU oracle: executes short pieces of x86-64 code at CPL 3 on this machine's processor, from a given
 * register, FPU and memory state, and records the state they end in.
 *
 *   native FILE     FILE holds cases (struct state); each is replaced by its result
 *
 * All code is in place from the beginning. A case is entered by returning from a signal handler with its state in the saved context, and left by the int3 that follows its
 * code or by a fault, whose handler records the result and returns into the next case: one signal a case. The trap number, error
 * code and CR2 are those that the processor gave the kernel.
 */
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <fcntl.h>
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#define CODE 0x10000000ull /* int3 everywhere but where the cases' code is, then a hole */
#define CODE_PAGES 257
#define DATA 0x20000000ull /* two pages, holes around them */
#define READ_ONLY 0x20010000ull
#define PAGE 4096ull
#define WINDOW (DATA + PAGE - 256) /* 512 bytes over the page boundary: what a case may change */

struct state {
  uint64_t general[16];
  uint64_t rip, rflags;
  uint32_t trap, error; /* a case: length of its code, unused */
  uint64_t cr2;
  uint64_t outside; /* not 0: data outside the window changed (its hash) */
  uint8_t code[48];
  uint64_t reserved[5];
  uint8_t fx[512];
  uint8_t window[512];
};
_Static_assert(sizeof(struct state) == 1280, "layout shared with case.ts");

static struct state *cases;
static size_t count, current;
static int started;
static uint8_t pattern[2 * PAGE];
static struct state running;

static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                              REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

static uint64_t hash(const uint8_t *bytes, size_t length) {
  uint64_t value = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < length; i++) value = (value ^ bytes[i]) * 0x100000001b3ull;
  return value;
}

static void record(const ucontext_t *context, int number) {
  struct state *result = &cases[current];
  const greg_t *registers = context->uc_mcontext.gregs;
  uint8_t *data = (uint8_t *)DATA;
  for (int i = 0; i < 16; i++) result->general[i] = registers[order[i]];
  result->rip = registers[REG_RIP];
  result->rflags = registers[REG_EFL];
  result->trap = number == SIGALRM ? 255 : (uint32_t)registers[REG_TRAPNO];
  result->error = registers[REG_ERR];
  result->cr2 = registers[REG_TRAPNO] == 14 ? registers[REG_CR2] : 0;
  memcpy(result->fx, context->uc_mcontext.fpregs, 512);
  memcpy(result->window, (void *)WINDOW, 512);
  memcpy((void *)WINDOW, pattern + (WINDOW - DATA), 512);
  result->outside = 0;
  if (memcmp(data, pattern, 2 * PAGE) != 0) {
    result->outside = hash(data, 2 * PAGE) | 1;
    memcpy(data, pattern, 2 * PAGE);
  }
}

static void enter(ucontext_t *context) {
  memcpy(&running, &cases[current], sizeof running);
  greg_t *registers = context->uc_mcontext.gregs;
  for (int i = 0; i < 16; i++) registers[order[i]] = running.general[i];
  registers[REG_RIP] = running.rip;
  registers[REG_EFL] = running.rflags;
  memcpy((void *)WINDOW, running.window, 512);
  uint8_t *fpu = (uint8_t *)context->uc_mcontext.fpregs;
  /* Bytes 464-511 tell the kernel where the extended part is; xstate_bv says which parts are to be loaded. */
  memcpy(fpu, running.fx, 416);
  if (*(uint32_t *)(fpu + 464) == 0x46505853) *(uint64_t *)(fpu + 512) |= 3;
}

static void on_signal(int number, siginfo_t *info, void *opaque) {
  ucontext_t *context = opaque;
  (void)info;
  if (started) {
    record(context, number);
    current++;
  }
  started = 1;
  if (current == count) _exit(0);
  enter(context);
  /* A case that never ends is itself a finding; the timer is armed once in a while to keep the cost away. */
  if (current % 256 == 0) setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_sec = 5}}, NULL);
}

static void map(uint64_t address, size_t pages, int protection) {
  void *got = mmap((void *)address, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (got != (void *)address) {
    perror("native: mmap");
    exit(2);
  }
  /* Touched, so that a fault is never about a page that is not there yet. */
  memset(got, 0, pages * PAGE);
  if (mprotect(got, pages * PAGE, protection)) exit(2);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  int file = open(argv[1], O_RDWR);
  struct stat status;
  if (file < 0 || fstat(file, &status)) {
    perror("native: open");
    return 2;
  }
  count = status.st_size / sizeof(struct state);
  if (count == 0) return 0;
  cases = mmap(NULL, count * sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (cases == MAP_FAILED) return 2;

  map(CODE, CODE_PAGES, PROT_READ | PROT_WRITE | PROT_EXEC);
  memset((void *)CODE, 0xcc, CODE_PAGES * PAGE);
  for (size_t i = 0; i < count; i++) memcpy((void *)cases[i].rip, cases[i].code, cases[i].trap);
  map(DATA, 2, PROT_READ | PROT_WRITE);
  map(READ_ONLY, 1, PROT_READ);
  for (size_t i = 0; i < sizeof pattern; i++) pattern[i] = (uint8_t)(i * 7 + (i >> 8));
  memcpy((void *)DATA, pattern, sizeof pattern);
  syscall(SYS_arch_prctl, ARCH_SET_GS, DATA);

  static uint8_t stack[1 << 16];
  sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigfillset(&action.sa_mask);
  const int signals[] = {SIGTRAP, SIGSEGV, SIGILL, SIGFPE, SIGBUS, SIGALRM};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
  raise(SIGTRAP);
  return 3;
}
