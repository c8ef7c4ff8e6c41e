/*
 * Channels: a process's streams between its pipes (or terminal) and the host.
 *
 * Nothing is lost: a process is reported as ended only after everything that it had written when it ended has been
 * sent. What children that it left behind write later is not waited for.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent.h"

#define READ_SIZE (32 * 1024)
/* How long a terminal may stay quiet after its process ended before the rest of its output is taken to be complete. */
#define TTY_DRAIN_MS 100
/*
 * What a process had written to its terminal is in the kernel's buffers, which hold some 70 KiB. Jobs that it left behind may write on
 * for ever: the rest is taken to be complete after this much of it, or after this long in which the host could have taken more.
 */
#define TTY_DRAIN_BYTES (256 * 1024)
#define TTY_DRAIN_ALL_MS 1000

/* Processes whose connection is gone and that were started to outlive it. */
static struct channel *survivors;

struct channel *channel_find(struct connection *c, uint32_t id)
{
	for (struct channel *ch = c->channels; ch; ch = ch->next)
		if (ch->id == id)
			return ch;
	return NULL;
}

struct channel *channel_new(struct connection *c, uint32_t id)
{
	struct channel *ch = must_alloc(sizeof *ch);
	ch->connection = c;
	ch->id = id;
	for (int i = 0; i < 3; i++)
		ch->streams[i] = (struct stream){ .pipe.fd = -1, .channel = ch, .number = (uint8_t)i,
						  .credit = WINDOW_INITIAL, .left = -1 };
	ch->next = c->channels;
	c->channels = ch;
	return ch;
}

static void unlink_from(struct channel **list, struct channel *ch)
{
	while (*list && *list != ch)
		list = &(*list)->next;
	if (*list)
		*list = ch->next;
}

static void destroy(struct channel *ch)
{
	unlink_from(ch->connection ? &ch->connection->channels : &survivors, ch);
	watch_free(ch);
	exec_counts.ended += ch->command;
	for (int i = 0; i < 3; i++) {
		loop_close(&ch->streams[i].pipe);
		queue_free(&ch->streams[i].queue);
	}
	free(ch);
}

static void send_exit(struct connection *c, uint32_t id, uint32_t kind, uint32_t value, uint32_t flags,
		      const char *message)
{
	struct queue q = { 0 };
	put_u32(&q, kind);
	put_u32(&q, value);
	put_u32(&q, flags);
	put_string(&q, message);
	connection_send(c, id, FRAME_EXIT, 0, 0, queue_head(&q), queue_size(&q));
	queue_free(&q);
}

void channel_not_started(struct connection *c, uint32_t id, int error, const char *message)
{
	send_exit(c, id, EXIT_NOT_STARTED, (uint32_t)error, 0, message);
}

/* Frees the channel once its process has ended and all its output is on its way. */
static bool finish(struct channel *ch)
{
	if (!ch->reaped || !ch->streams[STREAM_STDOUT].ended || !ch->streams[STREAM_STDERR].ended)
		return false;
	bool signalled = WIFSIGNALED(ch->status);
	if (ch->answers) {
		send_result(ch->connection, ch->id, signalled ? EIO : WEXITSTATUS(ch->status), NULL);
		destroy(ch);
		return true;
	}
	uint32_t flags = ch->timed_out ? EXIT_FLAG_TIMED_OUT : 0;
	if (signalled && WCOREDUMP(ch->status))
		flags |= EXIT_FLAG_CORE;
	send_exit(ch->connection, ch->id, signalled ? EXIT_SIGNAL : EXIT_CODE,
		  (uint32_t)(signalled ? WTERMSIG(ch->status) : WEXITSTATUS(ch->status)), flags, "");
	destroy(ch);
	return true;
}

static void end_output(struct stream *s)
{
	if (s->ended)
		return;
	s->ended = true;
	if (!s->channel->tty)
		loop_close(&s->pipe);
	else
		loop_want(&s->pipe, 0); /* the terminal still takes input */
	connection_send(s->channel->connection, s->channel->id, FRAME_DATA, s->number, FLAG_EOF, NULL, 0);
}

/* Whether the host, by its credit and by what it has taken off the connection, takes more output. */
static bool may_send(const struct stream *s)
{
	return s->credit > 0 && queue_size(&s->channel->connection->out) <= OUT_HIGH_WATER;
}

/* Reads once, as much as credit allows; false when there is nothing more to do now. */
static bool read_output(struct stream *s)
{
	struct channel *ch = s->channel;
	uint8_t buffer[READ_SIZE];
	size_t want = sizeof buffer;
	if (s->ended || s->pipe.fd < 0)
		return false;
	if (s->left == 0) {
		end_output(s);
		return false;
	}
	if (s->left > 0 && (uint64_t)s->left < want)
		want = (size_t)s->left;
	if (ch->connection) {
		if (!may_send(s))
			return false;
		if (s->credit < want)
			want = (size_t)s->credit;
	}
	ssize_t n = read(s->pipe.fd, buffer, want);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (n <= 0) { /* the end; EIO is how a terminal says so */
		end_output(s);
		return false;
	}
	if (s->left > 0)
		s->left -= n;
	if (ch->connection)
		s->credit -= (uint64_t)n;
	connection_send(ch->connection, ch->id, FRAME_DATA, s->number, 0, buffer, (size_t)n);
	if (ch->drain_until_ms) {
		ch->drain_until_ms = now_ms() + TTY_DRAIN_MS;
		ch->drain_bytes += (uint64_t)n;
		if (ch->drain_bytes >= TTY_DRAIN_BYTES) {
			end_output(s);
			return false;
		}
	}
	return true;
}

static void want_events(struct stream *s)
{
	struct channel *ch = s->channel;
	if (s->number == STREAM_STDIN) {
		loop_want(&s->pipe, queue_size(&s->queue) ? EPOLLOUT : 0);
		return;
	}
	loop_want(&s->pipe, !s->ended && (!ch->connection || may_send(s)) ? EPOLLIN : 0);
}

static void write_input(struct stream *s)
{
	struct channel *ch = s->channel;
	uint64_t written = 0;
	while (queue_size(&s->queue) > 0) {
		ssize_t n = write(s->pipe.fd, queue_head(&s->queue), queue_size(&s->queue));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0) { /* nobody reads any more: swallow, as a shell's pipe would end with SIGPIPE */
			n = (ssize_t)queue_size(&s->queue);
			loop_close(&s->pipe);
		}
		written += (uint64_t)n;
		queue_consume(&s->queue, (size_t)n);
	}
	if (written > 0) {
		uint32_t credit = (uint32_t)written;
		s->credit += written;
		connection_send(ch->connection, ch->id, FRAME_WINDOW, STREAM_STDIN, 0, &credit, sizeof credit);
	}
	if (s->ended && queue_size(&s->queue) == 0 && s->pipe.fd >= 0) {
		static const char end_of_transmission = 4;
		if (ch->tty && write(s->pipe.fd, &end_of_transmission, 1) < 0)
			loop_close(&s->pipe);
		if (!ch->tty)
			loop_close(&s->pipe);
		s->ended = false; /* said once */
	}
	want_events(s);
}

static void stream_ready(struct watcher *watcher, uint32_t events)
{
	struct stream *s = (struct stream *)watcher;
	struct channel *ch = s->channel;
	if (s->number == STREAM_STDIN) {
		if (events & EPOLLERR && !(events & EPOLLOUT))
			loop_close(&s->pipe);
		write_input(s);
		return;
	}
	read_output(s);
	if (!finish(ch))
		want_events(s);
}

void channel_pump(struct channel *ch)
{
	for (int i = STREAM_STDOUT; i <= STREAM_STDERR; i++)
		want_events(&ch->streams[i]);
	watch_pump(ch);
}

void channel_attach_process(struct channel *ch, pid_t pid, int in, int out, int err)
{
	int fds[3] = { in, out, err };
	ch->pid = pid;
	for (int i = 0; i < 3; i++) {
		ch->streams[i].pipe.fd = fds[i];
		ch->streams[i].pipe.ready = stream_ready;
		if (i > 0 && fds[i] < 0)
			ch->streams[i].ended = true;
	}
	uint32_t number = (uint32_t)pid;
	if (!ch->answers)
		connection_send(ch->connection, ch->id, FRAME_STARTED, 0, 0, &number, sizeof number);
	channel_pump(ch);
}

void channel_data(struct channel *ch, uint8_t stream, const uint8_t *bytes, size_t size, bool eof)
{
	struct stream *s = &ch->streams[STREAM_STDIN];
	if (stream != STREAM_STDIN || size > s->credit) {
		ch->connection->broken = true;
		return;
	}
	s->credit -= size;
	if (eof)
		s->ended = true;
	if (s->pipe.fd < 0 && size > 0) { /* the reader is gone: keep the host's writer going */
		uint32_t credit = (uint32_t)size;
		s->credit += size;
		connection_send(ch->connection, ch->id, FRAME_WINDOW, STREAM_STDIN, 0, &credit, sizeof credit);
		return;
	}
	queue_append(&s->queue, bytes, size);
	if (s->pipe.fd >= 0)
		write_input(s);
}

void channel_window(struct channel *ch, uint8_t stream, uint32_t credit)
{
	if (stream != STREAM_STDOUT && stream != STREAM_STDERR)
		return;
	ch->streams[stream].credit += credit;
	want_events(&ch->streams[stream]);
}

/* Its whole group; by itself while it has not made one yet, or what it was to be spared would be taken for its end of input. */
static void signal_all(struct channel *ch, int signal_number)
{
	if (kill(-ch->pid, signal_number))
		kill(ch->pid, signal_number);
}

void channel_signal(struct channel *ch, int signal_number)
{
	if (ch->pid > 0 && !ch->reaped && signal_number > 0 && signal_number < 65)
		signal_all(ch, signal_number);
}

void channel_resize(struct channel *ch, uint16_t rows, uint16_t columns)
{
	struct winsize size = { .ws_row = rows, .ws_col = columns };
	if (ch->tty)
		ioctl(ch->streams[STREAM_STDOUT].pipe.fd, TIOCSWINSZ, &size);
}

void channel_abandon(struct channel *ch)
{
	if (ch->survives && ch->pid > 0 && !ch->reaped) {
		unlink_from(&ch->connection->channels, ch);
		ch->connection = NULL;
		ch->next = survivors;
		survivors = ch;
		loop_close(&ch->streams[STREAM_STDIN].pipe);
		channel_pump(ch); /* its output is read and dropped from now on, so that it does not block */
		return;
	}
	if (ch->pid > 0 && !ch->reaped) {
		if (ch->tty)
			signal_all(ch, SIGHUP);
		signal_all(ch, SIGKILL);
	}
	destroy(ch);
}

static void on_exit_of(struct channel *ch, int status)
{
	ch->reaped = true;
	ch->status = status;
	if (ch->tty) {
		ch->drain_until_ms = now_ms() + TTY_DRAIN_MS;
		ch->drain_end_ms = now_ms() + TTY_DRAIN_ALL_MS;
	} else {
		for (int i = STREAM_STDOUT; i <= STREAM_STDERR; i++) {
			struct stream *s = &ch->streams[i];
			int available = 0;
			if (s->pipe.fd < 0 || s->ended)
				continue;
			s->left = ioctl(s->pipe.fd, FIONREAD, &available) == 0 ? available : 0;
		}
	}
	for (int i = STREAM_STDOUT; i <= STREAM_STDERR; i++) {
		while (read_output(&ch->streams[i]))
			;
		want_events(&ch->streams[i]);
	}
	finish(ch);
}

static struct channel *find_process_in(struct channel *list, pid_t pid)
{
	while (list && (list->pid != pid || list->reaped))
		list = list->next;
	return list;
}

void channels_reap(void)
{
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid <= 0)
			return;
		struct channel *ch = find_process_in(survivors, pid);
		for (struct connection *c = connections_first(); c && !ch; c = c->next)
			ch = find_process_in(c->channels, pid);
		if (ch)
			on_exit_of(ch, status);
	}
}

/* One channel's deadlines; true when the channel is gone. */
static bool tick(struct channel *ch, uint64_t now, uint64_t *next)
{
	if (ch->deadline_ms && !ch->reaped) {
		if (now >= ch->deadline_ms) {
			ch->timed_out = true;
			ch->deadline_ms = 0;
			signal_all(ch, SIGKILL);
		} else if (ch->deadline_ms < *next) {
			*next = ch->deadline_ms;
		}
	}
	if (ch->drain_until_ms) {
		struct stream *s = &ch->streams[STREAM_STDOUT];
		bool waits_for_host = ch->connection && !may_send(s);
		if (waits_for_host) { /* its time does not count */
			ch->drain_until_ms = now + TTY_DRAIN_MS;
			ch->drain_end_ms = now + TTY_DRAIN_ALL_MS;
		}
		uint64_t due = ch->drain_until_ms < ch->drain_end_ms ? ch->drain_until_ms : ch->drain_end_ms;
		if (now >= due) {
			end_output(s);
			return finish(ch);
		}
		if (due < *next)
			*next = due;
	}
	return false;
}

int channels_tick(void)
{
	uint64_t now = now_ms(), next = UINT64_MAX;
	for (struct connection *c = connections_first(); c; c = c->next)
		for (struct channel *ch = c->channels, *after; ch; ch = after) {
			after = ch->next;
			tick(ch, now, &next);
		}
	for (struct channel *ch = survivors, *after; ch; ch = after) {
		after = ch->next;
		tick(ch, now, &next);
	}
	if (next == UINT64_MAX)
		return -1;
	return next <= now ? 0 : (int)(next - now);
}
