/*
 * One byte through a loop, without a guest and without a protocol: a bell rings, the loop writes a byte to a server on 127.0.0.1, reads its
 * answer, and rings back. That is what the loop of a network card cannot do without for a request of its guest.
 *
 *   relay drive WARM-MS MS COMMAND...   runs a loop with its bells as descriptors 3 and 4; prints trips a second and its CPU time for one
 *   relay loop PORT                     the loop in C
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BELL = 3, BACK = 4 };

static void die(const char *what) {
	perror(what);
	exit(1);
}

static double ms_of(clockid_t clock) {
	struct timespec t;
	if (clock_gettime(clock, &t) < 0) die("clock_gettime");
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void loop(int port) {
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int one = 1, set = epoll_create1(0), fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	for (int i = 0; i < 2; i++) {
		struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = i ? fd : BELL};
		if (epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) < 0) die("epoll_ctl");
	}
	for (;;) {
		struct epoll_event events[64];
		int count = epoll_wait(set, events, 64, -1);
		for (int i = 0; i < count; i++) {
			char bytes[2048] = "x";
			struct iovec vector = {bytes, 1};
			uint64_t ring = 1;
			if (events[i].data.fd == BELL) {
				if (writev(fd, &vector, 1) != 1) die("writev");
			} else if (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
				if (write(BACK, &ring, 8) != 8) die("write");
			}
		}
	}
}

static long trips(int bell, int back, double ms) {
	long count = 0;
	for (double end = ms_of(CLOCK_MONOTONIC) + ms; ms_of(CLOCK_MONOTONIC) < end; count++) {
		uint64_t word = 1;
		if (write(bell, &word, 8) != 8 || read(back, &word, 8) != 8) die("trip");
	}
	return count;
}

static void on_end(int signal) {
	(void)signal;
	_exit(1);
}

static void drive(double warm, double ms, char **command) {
	int bell = eventfd(0, EFD_CLOEXEC), back = eventfd(0, EFD_CLOEXEC);
	/* A loop that ends would never ring back. */
	signal(SIGCHLD, on_end);
	pid_t child = fork();
	if (child == 0) {
		/* Out of the way of the numbers that they get. */
		int ends[] = {dup(bell), dup(back)};
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (dup2(ends[0], BELL) < 0 || dup2(ends[1], BACK) < 0) die("dup2");
		execvp(command[0], command);
		die(command[0]);
	}
	clockid_t cpu;
	if (child < 0 || clock_getcpuclockid(child, &cpu) != 0) die("fork");
	trips(bell, back, warm);
	double busy = ms_of(cpu), begin = ms_of(CLOCK_MONOTONIC);
	long count = trips(bell, back, ms);
	printf("RATE %.1f\n", count * 1e3 / (ms_of(CLOCK_MONOTONIC) - begin));
	printf("CPU %.2f\n", (ms_of(cpu) - busy) * 1e3 / count);
	fflush(stdout);
	signal(SIGCHLD, SIG_DFL);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
	if (argc == 3 && !strcmp(argv[1], "loop")) loop(atoi(argv[2]));
	if (argc < 5 || strcmp(argv[1], "drive")) return 2;
	drive(atof(argv[2]), atof(argv[3]), argv + 4);
	return 0;
}
