/* A host connection: frames in, frames out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent.h"

static struct connection *connections;

struct connection *connections_first(void)
{
	return connections;
}

static void pump_channels(struct connection *c)
{
	for (struct channel *ch = c->channels; ch; ch = ch->next)
		channel_pump(ch);
}

/*
 * A restored machine's connections are gone, and the kernel says so with ECONNRESET, which a host that hangs up never
 * causes. What runs goes on then: the machine is where it was, only nobody listens any more.
 */
static void fail(struct connection *c, int error)
{
	struct sockaddr_storage address;
	socklen_t size = sizeof address;
	c->broken = true;
	if ((error == ECONNRESET || error == ENOTCONN) &&
	    getsockname(c->socket.fd, (struct sockaddr *)&address, &size) == 0 && address.ss_family == AF_VSOCK)
		c->restored = true;
}

static void flush(struct connection *c)
{
	bool was_high = queue_size(&c->out) > OUT_HIGH_WATER;
	while (queue_size(&c->out) > 0 && !c->broken) {
		ssize_t n = send(c->socket.fd, queue_head(&c->out), queue_size(&c->out), MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0) {
			if (errno == EINTR)
				continue;
			if (errno != EAGAIN)
				fail(c, errno);
			break;
		}
		queue_consume(&c->out, (size_t)n);
	}
	if (c->broken)
		return;
	loop_want(&c->socket, EPOLLIN | (queue_size(&c->out) ? EPOLLOUT : 0));
	if (was_high && queue_size(&c->out) <= OUT_HIGH_WATER)
		pump_channels(c);
}

void connection_send(struct connection *c, uint32_t channel, uint8_t type, uint8_t stream, uint16_t flags,
		     const void *payload, size_t size)
{
	if (!c || c->broken)
		return;
	put_u32(&c->out, (uint32_t)size);
	put_u32(&c->out, channel);
	queue_append(&c->out, &type, 1);
	queue_append(&c->out, &stream, 1);
	put_u16(&c->out, flags);
	queue_append(&c->out, payload, size);
	/* What one turn of the loop has to say goes in one piece, unless it is much. */
	if (queue_size(&c->out) > OUT_HIGH_WATER)
		flush(c);
}

void connections_flush(void)
{
	for (struct connection *c = connections; c; c = c->next)
		if (queue_size(&c->out) > 0)
			flush(c);
}

void send_result(struct connection *c, uint32_t channel, int error, const struct queue *payload)
{
	struct queue q = { 0 };
	put_u32(&q, (uint32_t)error);
	if (payload)
		queue_append(&q, payload->data + payload->start, queue_size(payload));
	else if (error)
		put_string(&q, strerror(error));
	connection_send(c, channel, FRAME_RESULT, 0, 0, queue_head(&q), queue_size(&q));
	queue_free(&q);
}

static void on_channel(struct connection *c, uint8_t type, uint32_t id, uint8_t stream, uint16_t flags,
		       struct reader *r)
{
	/* A frame may cross an exit on its way; for a channel that is gone it means nothing. */
	struct channel *ch = channel_find(c, id);
	if (!ch)
		return;
	switch (type) {
	case FRAME_DATA:
		channel_data(ch, stream, r->at, reader_left(r), flags & FLAG_EOF);
		break;
	case FRAME_WINDOW:
		channel_window(ch, stream, get_u32(r));
		break;
	case FRAME_SIGNAL:
		channel_signal(ch, (int)get_u32(r));
		break;
	case FRAME_RESIZE: {
		uint16_t rows = get_u16(r);
		channel_resize(ch, rows, get_u16(r));
		break;
	}
	case FRAME_CLOSE:
		channel_abandon(ch);
		break;
	}
}

static void on_frame(struct connection *c, uint32_t id, uint8_t type, uint8_t stream, uint16_t flags, struct reader r)
{
	if (type == FRAME_HELLO) {
		struct queue q = { 0 };
		put_u32(&q, PROTOCOL_VERSION);
		c->greeted = get_u32(&r) == PROTOCOL_VERSION;
		connection_send(c, 0, FRAME_HELLO, 0, 0, queue_head(&q), queue_size(&q));
		queue_free(&q);
		return;
	}
	if (!c->greeted || (type >= FRAME_EXEC && type < FRAME_STARTED && channel_find(c, id))) {
		c->broken = true; /* no hello, or a channel number in use */
		return;
	}
	if (type <= FRAME_CLOSE)
		on_channel(c, type, id, stream, flags, &r);
	else if (type == FRAME_EXEC)
		exec_request(c, id, &r);
	else if (type == FRAME_WATCH)
		watch_request(c, id, &r);
	else if ((type >= FRAME_READ_FILE && type <= FRAME_TREE_IN) || type == FRAME_LIST_OUT)
		tree_request(c, type, id, &r);
	else if (type >= FRAME_STAT && type <= FRAME_CHMOD)
		file_request(c, type, id, &r);
	else if (type >= FRAME_CLOCK && type <= FRAME_SYNC)
		system_request(c, type, id, &r);
	else
		send_result(c, id, ENOSYS, NULL);
}

static void take_frames(struct connection *c)
{
	while (queue_size(&c->in) >= FRAME_HEADER_SIZE && !c->broken) {
		struct reader header = { queue_head(&c->in), queue_head(&c->in) + FRAME_HEADER_SIZE, false };
		uint32_t size = get_u32(&header);
		uint32_t id = get_u32(&header);
		uint16_t type_and_stream = get_u16(&header);
		uint16_t flags = get_u16(&header);
		if (size > FRAME_PAYLOAD_MAX) {
			c->broken = true;
			return;
		}
		if (queue_size(&c->in) < FRAME_HEADER_SIZE + (size_t)size)
			return;
		const uint8_t *payload = queue_head(&c->in) + FRAME_HEADER_SIZE;
		on_frame(c, id, type_and_stream & 0xff, (uint8_t)(type_and_stream >> 8), flags,
			 (struct reader){ payload, payload + size, false });
		queue_consume(&c->in, FRAME_HEADER_SIZE + (size_t)size);
	}
}

static void socket_ready(struct watcher *watcher, uint32_t events)
{
	struct connection *c = (struct connection *)watcher;
	if (events & EPOLLOUT)
		flush(c);
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
		size_t want = FRAME_HEADER_SIZE + FRAME_PAYLOAD_MAX;
		ssize_t n = recv(c->socket.fd, queue_reserve(&c->in, want), want, MSG_DONTWAIT);
		if (n == 0)
			c->broken = true;
		else if (n < 0 && errno != EAGAIN && errno != EINTR)
			fail(c, errno);
		else if (n > 0) {
			queue_commit(&c->in, (size_t)n);
			take_frames(c);
		}
	}
}

void connection_open(int fd)
{
	struct connection *c = must_alloc(sizeof *c);
	c->socket.fd = fd;
	c->socket.ready = socket_ready;
	c->next = connections;
	connections = c;
	loop_want(&c->socket, EPOLLIN);
}

static void destroy(struct connection *c)
{
	while (c->channels) {
		/* Commands only: a file whose writer is gone is not to be taken for complete. */
		c->channels->survives |= c->restored && c->channels->command;
		channel_abandon(c->channels);
	}
	loop_close(&c->socket);
	queue_free(&c->in);
	queue_free(&c->out);
	free(c);
}

void connections_sweep(void)
{
	for (struct connection **link = &connections; *link;) {
		struct connection *c = *link;
		if (c->broken) {
			*link = c->next;
			destroy(c);
		} else {
			link = &c->next;
		}
	}
}

void connections_close_all(void)
{
	for (struct connection *c = connections; c; c = c->next) {
		flush(c);
		c->broken = true;
	}
	connections_sweep();
}
