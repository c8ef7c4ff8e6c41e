/*
 * Requests and answers of one byte, for the network benchmark.
 *
 *   pingpong serve PORT            echoes, on 127.0.0.1
 *   pingpong rr HOST PORT MS       over one connection; prints round trips a second
 *   pingpong crr HOST PORT MS      a connection for each; prints those a second
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_OPEN 256

static double now_ms(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void die(const char *what) {
	perror(what);
	exit(1);
}

static struct sockaddr_in address(const char *host, const char *port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
	if (inet_pton(AF_INET, host, &a.sin_addr) != 1) die("inet_pton");
	return a;
}

static int dial(const struct sockaddr_in *to) {
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0) die("socket");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	if (connect(fd, (const struct sockaddr *)to, sizeof *to) < 0) die("connect");
	return fd;
}

static void trip(int fd) {
	char byte = 'x';
	if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1) die("trip");
}

static void serve(const char *port) {
	struct pollfd fds[MAX_OPEN] = {0};
	struct sockaddr_in at = address("127.0.0.1", port);
	int one = 1, count = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(listener, (struct sockaddr *)&at, sizeof at) < 0 || listen(listener, 128) < 0) die("listen");
	signal(SIGPIPE, SIG_IGN);
	fds[0] = (struct pollfd){.fd = listener, .events = POLLIN};
	puts("SERVING");
	fflush(stdout);
	for (;;) {
		if (poll(fds, count, -1) < 0) die("poll");
		for (int i = count - 1; i > 0; i--) {
			char byte[64];
			if (!fds[i].revents) continue;
			ssize_t n = read(fds[i].fd, byte, sizeof byte);
			if (n > 0 && write(fds[i].fd, byte, n) == n) continue;
			close(fds[i].fd);
			fds[i] = fds[--count];
		}
		if ((fds[0].revents & POLLIN) && count < MAX_OPEN) {
			int fd = accept(listener, NULL, NULL);
			if (fd < 0) continue;
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
			fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
		}
	}
}

int main(int argc, char **argv) {
	if (argc == 3 && !strcmp(argv[1], "serve")) serve(argv[2]);
	if (argc != 5) return 2;
	struct sockaddr_in to = address(argv[2], argv[3]);
	double begin = now_ms(), end = begin + atof(argv[4]);
	long count = 0;
	if (!strcmp(argv[1], "rr")) {
		int fd = dial(&to);
		for (begin = now_ms(), end = begin + atof(argv[4]); now_ms() < end; count++) trip(fd);
	} else {
		for (; now_ms() < end; count++) {
			int fd = dial(&to);
			trip(fd);
			close(fd);
		}
	}
	printf("RATE %.1f\n", count * 1e3 / (now_ms() - begin));
	return 0;
}
