/* Streams of a known pattern over vsock, from inside a guest.

     vsock-load serve MIB         ports: 100 sends MIB of pattern and ends its direction; 101 takes pattern until the peer
                                  ends its direction and then says what it got; 102 as 101, but begins to read only after
                                  two seconds; 104 as 100, but 8 MiB; 77 gives back what it gets; 103 ends
                                  the program
     vsock-load send PORT MIB     to the host: pattern, the end of its direction, then prints what the host says
     vsock-load receive PORT      from the host: pattern until the host ends its direction; prints what it got
     vsock-load many PORT COUNT   one connection to the host after another, each with a number that must come back      */
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Not a multiple of anything that buffers are made of, so that what is lost, doubled or swapped shows. */
#define PATTERN 1000003
static uint8_t pattern[PATTERN];
static uint8_t buffer[65536];

static void make_pattern(void) {
  uint32_t state = 0x12345678;
  for (int i = 0; i < PATTERN; i++) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    pattern[i] = state;
  }
}

static int write_all(int fd, const void *from, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = write(fd, (const char *)from + done, size - done);
    if (n <= 0) return -1;
    done += n;
  }
  return 0;
}

static int send_pattern(int fd, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    size_t at = done % PATTERN, n = sizeof buffer;
    if (n > PATTERN - at) n = PATTERN - at;
    if (n > bytes - done) n = bytes - done;
    if (write_all(fd, pattern + at, n)) return -1;
    done += n;
  }
  return shutdown(fd, SHUT_WR);
}

/* Reads to the end; what there is to say about it. */
static const char *take_pattern(int fd) {
  static char verdict[64];
  uint64_t done = 0;
  ssize_t n;
  while ((n = read(fd, buffer, sizeof buffer)) > 0)
    for (ssize_t from = 0; from < n;) {
      size_t at = done % PATTERN, length = n - from;
      if (length > PATTERN - at) length = PATTERN - at;
      if (memcmp(buffer + from, pattern + at, length)) {
        snprintf(verdict, sizeof verdict, "BAD near %llu\n", (unsigned long long)done);
        return verdict;
      }
      done += length;
      from += length;
    }
  snprintf(verdict, sizeof verdict, "%s %llu\n", n < 0 ? "BROKEN after" : "GOOD", (unsigned long long)done);
  return verdict;
}

static int connect_to(unsigned port) {
  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_HOST, .svm_port = port};
  int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (void *)&address, sizeof address)) {
    perror("connect");
    exit(6);
  }
  return fd;
}

static void answer(unsigned port, int fd, uint64_t bytes) {
  ssize_t n;
  if (port == 100 || port == 104) {
    send_pattern(fd, port == 104 ? 8 << 20 : bytes);
    while (read(fd, buffer, sizeof buffer) > 0);
  } else if (port == 77) {
    while ((n = read(fd, buffer, sizeof buffer)) > 0)
      if (write_all(fd, buffer, n)) break;
  } else {
    if (port == 102) sleep(2);
    const char *verdict = take_pattern(fd);
    write_all(fd, verdict, strlen(verdict));
  }
}

static void serve(unsigned port, uint64_t bytes) {
  struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
  int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
  if (fd < 0 || bind(fd, (void *)&address, sizeof address) || listen(fd, 128)) {
    perror("listen");
    exit(5);
  }
  if (port == 103) {
    accept(fd, NULL, NULL);
    exit(0);
  }
  if (fork() != 0) return;
  for (;;) {
    int connection = accept(fd, NULL, NULL);
    if (connection < 0) exit(7);
    /* Echoes are short and many; the others may take long. */
    if (port == 77 || fork() == 0) {
      answer(port, connection, bytes);
      if (port != 77) exit(0);
    }
    close(connection);
  }
}

int main(int argc, char **argv) {
  make_pattern();
  signal(SIGCHLD, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  if (argc < 3) return 64;
  unsigned port = atoi(argv[2]);
  if (!strcmp(argv[1], "serve")) {
    uint64_t bytes = (uint64_t)port << 20;
    serve(100, bytes);
    serve(101, bytes);
    serve(102, bytes);
    serve(104, bytes);
    serve(77, bytes);
    printf("SERVING\n");
    fflush(stdout);
    serve(103, bytes);
  } else if (!strcmp(argv[1], "receive")) {
    printf("RECEIVED %s", take_pattern(connect_to(port)));
  } else if (!strcmp(argv[1], "send")) {
    int fd = connect_to(port);
    if (send_pattern(fd, (uint64_t)atoi(argv[3]) << 20)) perror("send");
    ssize_t n = read(fd, buffer, sizeof buffer - 1);
    buffer[n > 0 ? n : 0] = 0;
    printf("SENT %s\n", buffer);
  } else if (!strcmp(argv[1], "many")) {
    int good = 0;
    for (uint32_t i = 0; i < (uint32_t)atoi(argv[3]); i++) {
      uint32_t back = 0;
      int fd = connect_to(port);
      if (!write_all(fd, &i, sizeof i) && recv(fd, &back, sizeof back, MSG_WAITALL) == sizeof back && back == i) good++;
      close(fd);
    }
    printf("MANY %d\n", good);
  }
  return 0;
}
