/* The agent's main loop: accepts connections, reaps processes, keeps deadlines. */
#include "agent.h"

#include <errno.h>
#include <linux/vm_sockets.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int stop_how = -1;

void agent_stop(int how)
{
	stop_how = how;
}

static void listener_ready(struct watcher *watcher, uint32_t events)
{
	(void)events;
	int fd = accept4(watcher->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		connection_open(fd);
}

static void signals_ready(struct watcher *watcher, uint32_t events)
{
	struct signalfd_siginfo info;
	(void)events;
	while (read(watcher->fd, &info, sizeof info) == sizeof info)
		;
	channels_reap();
}

static int listen_on(const struct sockaddr *address, socklen_t size)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && bind(fd, address, size) == 0 && listen(fd, 64) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

int agent_listen_vsock(void)
{
	struct sockaddr_vm address = { .svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = AGENT_PORT };
	return listen_on((struct sockaddr *)&address, sizeof address);
}

int agent_listen_unix(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
	return listen_on((struct sockaddr *)&address, sizeof address);
}

int agent_serve(int listener)
{
	struct watcher accepting = { .fd = listener, .ready = listener_ready };
	struct watcher signals = { .fd = -1, .ready = signals_ready };
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	signal(SIGPIPE, SIG_IGN);
	signals.fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	stop_how = -1;
	loop_init();
	loop_want(&accepting, EPOLLIN);
	loop_want(&signals, EPOLLIN);
	while (stop_how < 0) {
		int timeout = channels_tick();
		connections_flush();
		loop_once(timeout);
		connections_flush();
		connections_sweep();
	}
	connections_close_all();
	loop_close(&signals);
	loop_close(&accepting);
	return stop_how;
}
