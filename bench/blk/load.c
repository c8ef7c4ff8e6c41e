/*
 * Block load from inside a guest. Reads commands from standard input, one a line, and answers each with one line:
 *
 *   sleep MILLISECONDS
 *   DEVICE read|write random|sequential DEPTH BLOCK FROM LENGTH MILLISECONDS
 *   RESULT OPERATIONS NANOSECONDS
 *
 * Requests bypass the guest's page cache (O_DIRECT) and up to DEPTH are on their way at once (Linux's own AIO calls). They
 * stay in LENGTH bytes from FROM; a sequential load ends there, or when the time is up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEPTH 64

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void fail(const char *what) {
  printf("FAILED %s: %s\n", what, strerror(errno));
  exit(1);
}

struct load {
  int fd, write, random;
  uint64_t block, from, blocks, next, state;
  uint8_t *buffers;
  struct iocb requests[MAX_DEPTH];
};

/* The next block: in order, or by a generator with the same seed for every contestant (xorshift64*). */
static int64_t next_block(struct load *l) {
  if (!l->random) return l->next < l->blocks ? (int64_t)l->next++ : -1;
  l->state ^= l->state >> 12;
  l->state ^= l->state << 25;
  l->state ^= l->state >> 27;
  return (int64_t)(((l->state * 0x2545F4914F6CDD1Dull) >> 33) % l->blocks);
}

static int prepare(struct load *l, int slot) {
  int64_t block = next_block(l);
  if (block < 0) return 0;
  struct iocb *r = &l->requests[slot];
  memset(r, 0, sizeof *r);
  r->aio_data = slot;
  r->aio_lio_opcode = l->write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
  r->aio_fildes = l->fd;
  r->aio_buf = (uintptr_t)(l->buffers + slot * l->block);
  r->aio_nbytes = l->block;
  r->aio_offset = l->from + block * l->block;
  return 1;
}

static void submit(aio_context_t context, struct iocb **list, int count) {
  for (int done = 0; done < count;) {
    int n = syscall(SYS_io_submit, context, count - done, list + done);
    if (n < 0) fail("io_submit");
    done += n;
  }
}

static void run(struct load *l, int depth, uint64_t milliseconds) {
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, depth, &context) < 0) fail("io_setup");
  struct iocb *list[MAX_DEPTH];
  struct io_event events[MAX_DEPTH];
  uint64_t operations = 0, began = now(), end = began + milliseconds * 1000000;
  int flying = 0;
  for (int slot = 0; slot < depth; slot++)
    if (prepare(l, slot)) list[flying++] = &l->requests[slot];
  submit(context, list, flying);
  while (flying > 0) {
    int n = syscall(SYS_io_getevents, context, 1, depth, events, NULL);
    if (n < 0) fail("io_getevents");
    flying -= n;
    int again = 0, late = now() >= end;
    for (int i = 0; i < n; i++) {
      if ((uint64_t)events[i].res != l->block) errno = -(int)events[i].res, fail("a request");
      operations++;
      if (!late && prepare(l, events[i].data)) list[again++] = &l->requests[events[i].data];
    }
    submit(context, list, again);
    flying += again;
  }
  printf("RESULT %llu %llu\n", (unsigned long long)operations, (unsigned long long)(now() - began));
  syscall(SYS_io_destroy, context);
}

int main(void) {
  struct termios tty;
  if (tcgetattr(0, &tty) == 0) {
    tty.c_lflag &= ~(ECHO | ICANON);
    tcsetattr(0, TCSANOW, &tty);
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("LOAD-READY\n");
  char line[256], device[64], direction[16], order[16];
  while (fgets(line, sizeof line, stdin)) {
    struct load l = {.state = 88172645463325252ull};
    unsigned long long block, from, length, milliseconds;
    int depth;
    if (sscanf(line, "sleep %llu", &milliseconds) == 1) {
      uint64_t began = now();
      usleep(milliseconds * 1000);
      printf("RESULT 0 %llu\n", (unsigned long long)(now() - began));
      continue;
    }
    if (sscanf(line, "%63s %15s %15s %d %llu %llu %llu %llu", device, direction, order, &depth, &block, &from, &length,
               &milliseconds) != 8 || depth < 1 || depth > MAX_DEPTH || block == 0) {
      printf("FAILED to understand: %s", line);
      continue;
    }
    l.write = strcmp(direction, "write") == 0;
    l.random = strcmp(order, "random") == 0;
    l.block = block;
    l.from = from;
    l.blocks = length / block;
    l.fd = open(device, (l.write ? O_WRONLY : O_RDONLY) | O_DIRECT);
    if (l.fd < 0) fail(device);
    l.buffers = mmap(NULL, depth * block, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (l.buffers == MAP_FAILED) fail("mmap");
    memset(l.buffers, 0x5a, depth * block);
    /* Another place in the generator for another part of the disk. */
    l.state += from;
    run(&l, depth, milliseconds);
    munmap(l.buffers, depth * block);
    close(l.fd);
  }
  return 0;
}
