#include "loop.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64

static int epoll_fd = -1;
/* What loop_once is delivering; loop_close takes a watcher out of it, since its owner may be freed at once. */
static struct epoll_event batch[BATCH];
static int batch_size;

void loop_init(void)
{
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		abort();
}

static void forget(struct watcher *watcher)
{
	for (int i = 0; i < batch_size; i++)
		if (batch[i].data.ptr == watcher)
			batch[i].data.ptr = NULL;
}

void loop_want(struct watcher *watcher, uint32_t events)
{
	if (watcher->fd < 0 || (watcher->registered && watcher->events == events))
		return;
	if (events == 0) {
		if (watcher->registered)
			epoll_ctl(epoll_fd, EPOLL_CTL_DEL, watcher->fd, NULL);
		watcher->registered = false;
		forget(watcher);
	} else {
		struct epoll_event event = { .events = events, .data.ptr = watcher };
		epoll_ctl(epoll_fd, watcher->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, watcher->fd, &event);
		watcher->registered = true;
	}
	watcher->events = events;
}

void loop_close(struct watcher *watcher)
{
	if (watcher->fd < 0)
		return;
	loop_want(watcher, 0);
	close(watcher->fd);
	watcher->fd = -1;
}

void loop_once(int timeout_ms)
{
	batch_size = epoll_wait(epoll_fd, batch, BATCH, timeout_ms);
	for (int i = 0; i < batch_size; i++) {
		struct watcher *watcher = batch[i].data.ptr;
		if (watcher)
			watcher->ready(watcher, batch[i].events);
	}
	batch_size = 0;
}

uint64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
