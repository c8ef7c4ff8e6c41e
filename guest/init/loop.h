/* One epoll loop for everything the agent waits for. Single-threaded: handlers run to completion. */
#ifndef VITRINE_LOOP_H
#define VITRINE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct watcher {
	int fd; /* -1: closed, or never opened */
	uint32_t events;
	bool registered;
	void (*ready)(struct watcher *watcher, uint32_t events);
};

void loop_init(void);
/* Starts, changes or (events = 0) suspends waiting. A suspended descriptor is out of the set, so that a hang-up of it does not spin. */
void loop_want(struct watcher *watcher, uint32_t events);
/* Stops waiting and closes the descriptor. Events of it that were already collected are not delivered. */
void loop_close(struct watcher *watcher);
/* Waits once, up to `timeout_ms` (-1: for ever), and delivers. */
void loop_once(int timeout_ms);

uint64_t now_ms(void);

#endif
