/* The agent: serves the host's requests over connections, each with many channels. */
#ifndef VITRINE_AGENT_H
#define VITRINE_AGENT_H

#include <sys/types.h>

#include "bytes.h"
#include "loop.h"
#include "protocol.h"

struct channel;

struct connection {
	struct watcher socket; /* first: the loop's handler casts back */
	struct queue in, out;
	struct channel *channels;
	struct connection *next;
	bool greeted, broken, restored;
};

/* Beyond this much unsent output, channels stop reading from their processes. */
#define OUT_HIGH_WATER (512 * 1024)

/* Something the host started under a number: a process with streams, or a watch on files. */
struct channel {
	struct channel *next;
	struct connection *connection; /* NULL once the host is gone and the process is to survive */
	uint32_t id;
	pid_t pid; /* 0: no process (a file watch) */
	bool tty, survives, reaped, timed_out, command;
	bool answers; /* its exit status is the errno of a FRAME_RESULT */
	int status;   /* from waitpid, once reaped */
	uint64_t deadline_ms;
	/* a terminal whose process ended: complete when quiet until then, at the latest then; what came since */
	uint64_t drain_until_ms, drain_end_ms, drain_bytes;
	struct stream {
		struct watcher pipe;
		struct channel *channel;
		uint8_t number;
		uint64_t credit;    /* output: what the host will still take; input: what it may still send */
		struct queue queue; /* input on its way to the process */
		bool ended;         /* output: EOF was sent; input: EOF was received */
		int64_t left;       /* output after the exit: bytes still in the pipe, -1 before */
	} streams[3];
	struct file_watch *watch;
};

/* connection.c */
void connection_open(int fd);
void connection_send(struct connection *c, uint32_t channel, uint8_t type, uint8_t stream, uint16_t flags,
		     const void *payload, size_t size);
void send_result(struct connection *c, uint32_t channel, int error, const struct queue *payload);
/* Sends what the turn of the loop has left to send. */
void connections_flush(void);
/* connections whose socket failed are freed here, outside of any handler */
void connections_sweep(void);
void connections_close_all(void);
struct connection *connections_first(void);

/* channel.c: processes and their streams */
struct channel *channel_find(struct connection *c, uint32_t id);
struct channel *channel_new(struct connection *c, uint32_t id);
void channel_attach_process(struct channel *ch, pid_t pid, int in, int out, int err);
void channel_not_started(struct connection *c, uint32_t id, int error, const char *message);
void channel_data(struct channel *ch, uint8_t stream, const uint8_t *bytes, size_t size, bool eof);
void channel_window(struct channel *ch, uint8_t stream, uint32_t credit);
void channel_signal(struct channel *ch, int signal_number);
void channel_resize(struct channel *ch, uint16_t rows, uint16_t columns);
/* The host is not interested any more. */
void channel_abandon(struct channel *ch);
/* Reads on or stops reading, as credit and the connection's queue allow. */
void channel_pump(struct channel *ch);
void channels_reap(void);
/* Acts on deadlines; milliseconds to the next one, or -1. */
int channels_tick(void);

/* spawn.c: starting processes. Commands only; requests that stream are not counted. */
extern struct exec_counts {
	uint64_t started, ended, failed;
} exec_counts;
void exec_request(struct connection *c, uint32_t id, struct reader *r);
/* Runs `work` in a forked child with its stdin and stdout on the channel; its return value is the exit status. */
void spawn_builtin(struct connection *c, uint32_t id, int (*work)(void *), void *argument);
/* The same for work that may take long and has one answer: what it returns is the errno of the FRAME_RESULT. */
void spawn_answer(struct connection *c, uint32_t id, int (*work)(void *), void *argument);

/* user.c: /etc/passwd and /etc/group without NSS */
struct account {
	uid_t uid;
	gid_t gid;
	gid_t groups[64];
	int group_count;
	char name[64], home[256];
};
/* "", "name", "uid", either with ":group" or ":gid". 0 or an errno (EINVAL: no such user or group). */
int account_find(const char *user, struct account *account);

/* files.c: requests answered at once; tree.c: those that stream, in a child; watch.c: inotify; system.c: the machine */
void file_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r);
void tree_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r);
void watch_request(struct connection *c, uint32_t id, struct reader *r);
void watch_free(struct channel *ch);
void watch_pump(struct channel *ch);
void system_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r);
/* Appends a name and a stat for every entry; E2BIG when that is more than `limit`. */
int list_directory(const char *path, struct queue *q, size_t limit);
/* Creates every missing directory of a path. */
int make_directories(const char *path, mode_t mode);

/* agent.c: serves connections accepted from `listener` until a shutdown request; what was asked for (0 off, 1 reboot). */
int agent_serve(int listener);
int agent_listen_vsock(void);
int agent_listen_unix(const char *path);
void agent_stop(int how);

#endif
