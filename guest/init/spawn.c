/* Starting processes for the host: pipes or a terminal, user, directory, environment. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

#define DEFAULT_PATH "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define MAX_STRINGS 4096

struct exec_counts exec_counts;

struct request {
	uint32_t flags, timeout_ms;
	struct winsize size;
	char *user, *cwd;
	char **argv, **env;
};

/* How far the child came before it failed. It shares our memory until it has become another program. */
struct failure {
	volatile int error;
	volatile enum { FAILED_USER, FAILED_DIRECTORY, FAILED_EXEC } where;
};

/* A counted list of strings as a NULL-terminated array, with `spare` empty places at its end. */
static char **get_strings(struct reader *r, size_t spare)
{
	uint32_t count = get_u32(r);
	if (r->bad || count > MAX_STRINGS) {
		r->bad = true;
		return NULL;
	}
	char **list = must_alloc((count + spare + 1) * sizeof *list);
	for (uint32_t i = 0; i < count; i++)
		list[i] = get_string(r);
	return list;
}

static void free_strings(char **list)
{
	for (char **at = list; at && *at; at++)
		free(*at);
	free(list);
}

static bool has_variable(char **env, const char *name)
{
	size_t length = strlen(name);
	for (; *env; env++)
		if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
			return true;
	return false;
}

static void add_variable(char **env, char *text)
{
	while (*env)
		env++;
	*env = text;
}

/* In the child: back to default signals, a session of its own, standard streams. */
static void prepare_child(int in, int out, int err, bool tty)
{
	sigset_t none;
	sigemptyset(&none);
	signal(SIGPIPE, SIG_DFL); /* the one that we ignore */
	sigprocmask(SIG_SETMASK, &none, NULL);
	setsid();
	if (tty)
		ioctl(in, TIOCSCTTY, 0);
	dup2(in, 0);
	dup2(out, 1);
	dup2(err, 2);
}

static int become(const struct account *account)
{
	if (setgroups((size_t)account->group_count, account->groups) || setgid(account->gid) || setuid(account->uid))
		return errno;
	return 0;
}

static void run_child(struct request *q, const struct account *account, struct failure *failure)
{
	failure->where = FAILED_USER;
	failure->error = become(account);
	if (!failure->error) {
		failure->where = FAILED_DIRECTORY;
		const char *cwd = *q->cwd ? q->cwd : account->home;
		if (chdir(cwd) && (*q->cwd || chdir("/")))
			failure->error = errno;
	}
	if (!failure->error) {
		failure->where = FAILED_EXEC;
		execvpe(q->argv[0], q->argv, q->env);
		failure->error = errno;
	}
	_exit(127);
}

/* /dev/stdout and its like are opened anew, with the rights of the command's user. A terminal keeps its group. */
static void give_streams(const int theirs[3], const struct account *account, bool tty)
{
	for (int i = 0; i < 3; i++)
		if (fchown(theirs[i], account->uid, tty ? (gid_t)-1 : account->gid))
			return; /* an agent that is not root runs everything as itself */
}

/* Three pipes, or one terminal whose master serves all; 0 or an errno. `ours` and `theirs` are stdin, stdout, stderr. */
static int open_streams(struct request *q, int ours[3], int theirs[3])
{
	for (int i = 0; i < 3; i++)
		ours[i] = theirs[i] = -1;
	if (q && q->flags & EXEC_TTY) {
		int master, slave;
		if (openpty(&master, &slave, NULL, NULL, &q->size))
			return errno;
		fcntl(master, F_SETFD, FD_CLOEXEC);
		fcntl(slave, F_SETFD, FD_CLOEXEC);
		ours[STREAM_STDOUT] = master;
		ours[STREAM_STDIN] = fcntl(master, F_DUPFD_CLOEXEC, 0);
		for (int i = 0; i < 3; i++)
			theirs[i] = i == 0 ? slave : fcntl(slave, F_DUPFD_CLOEXEC, 0);
	} else {
		for (int i = 0; i < 3; i++) {
			int ends[2];
			if (pipe2(ends, O_CLOEXEC))
				return errno;
			ours[i] = ends[i == STREAM_STDIN ? 1 : 0];
			theirs[i] = ends[i == STREAM_STDIN ? 0 : 1];
		}
	}
	for (int i = 0; i < 3; i++)
		if (ours[i] >= 0)
			fcntl(ours[i], F_SETFL, fcntl(ours[i], F_GETFL) | O_NONBLOCK);
	return 0;
}

static void close_all(const int fds[3])
{
	for (int i = 0; i < 3; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

static char *explain(const struct request *q, const struct failure *failure)
{
	const char *why = strerror(failure->error);
	switch (failure->where) {
	case FAILED_USER:
		return must_format("cannot become user '%s': %s", q->user, why);
	case FAILED_DIRECTORY:
		return must_format("cannot enter directory '%s': %s", q->cwd, why);
	default:
		return must_format("cannot run '%s': %s", q->argv[0], why);
	}
}

/*
 * The child runs in our memory, and we wait, until it is another program or has failed: nothing of ours is copied, which on a slow CPU is
 * most of the cost of a fork. execvpe looks for the program in the request's PATH, so that is put in place for the moment.
 */
static __attribute__((noinline)) pid_t spawn(struct request *q, const struct account *account, const int theirs[3],
					     struct failure *failure)
{
	char **ours = environ;
	environ = q->env;
	pid_t pid = vfork();
	if (pid == 0) {
		prepare_child(theirs[0], theirs[1], theirs[2], q->flags & EXEC_TTY);
		run_child(q, account, failure);
	}
	environ = ours;
	return pid;
}

static void start(struct connection *c, uint32_t id, struct request *q, const struct account *account)
{
	int ours[3], theirs[3];
	struct failure failure = { 0 };
	int error = open_streams(q, ours, theirs);
	if (!error)
		give_streams(theirs, account, q->flags & EXEC_TTY);
	pid_t pid = error ? -1 : spawn(q, account, theirs, &failure);
	if (pid < 0 && !error)
		error = errno;
	close_all(theirs);
	if (error || failure.error) { /* the exit of one that failed is reaped as a stranger's */
		exec_counts.failed++;
		close_all(ours);
		char *message = error ? must_format("cannot start a process: %s", strerror(error)) : explain(q, &failure);
		channel_not_started(c, id, error ? error : failure.error, message);
		free(message);
		return;
	}
	struct channel *ch = channel_new(c, id);
	ch->command = true;
	exec_counts.started++;
	ch->tty = q->flags & EXEC_TTY;
	ch->survives = q->flags & EXEC_SURVIVES;
	if (q->timeout_ms)
		ch->deadline_ms = now_ms() + q->timeout_ms;
	channel_attach_process(ch, pid, ours[0], ours[1], ours[2]);
}

void exec_request(struct connection *c, uint32_t id, struct reader *r)
{
	struct request q = { 0 }; /* one field after the other: an initializer's order is the compiler's choice */
	q.flags = get_u32(r);
	q.timeout_ms = get_u32(r);
	q.size.ws_row = get_u16(r);
	q.size.ws_col = get_u16(r);
	q.user = get_string(r);
	q.cwd = get_string(r);
	q.argv = get_strings(r, 0);
	q.env = get_strings(r, 4);
	struct account account;
	if (r->bad || !q.argv[0]) {
		channel_not_started(c, id, EINVAL, "malformed request");
	} else if (account_find(q.user, &account)) {
		char *message = must_format("no such user or group in the image: '%s'", q.user);
		channel_not_started(c, id, EINVAL, message);
		free(message);
	} else {
		if (!has_variable(q.env, "PATH"))
			add_variable(q.env, must_format("%s", DEFAULT_PATH));
		if (!has_variable(q.env, "HOME"))
			add_variable(q.env, must_format("HOME=%s", account.home));
		if (q.flags & EXEC_TTY && !has_variable(q.env, "TERM"))
			add_variable(q.env, must_format("TERM=xterm"));
		start(c, id, &q, &account);
	}
	free(q.user);
	free(q.cwd);
	if (q.argv)
		free_strings(q.argv);
	if (q.env)
		free_strings(q.env);
}

void spawn_builtin(struct connection *c, uint32_t id, int (*work)(void *), void *argument)
{
	int ours[3], theirs[3];
	int error = open_streams(NULL, ours, theirs);
	pid_t pid = error ? -1 : fork();
	if (pid == 0) {
		prepare_child(theirs[0], theirs[1], theirs[2], false);
		close_range(3, ~0U, 0); /* without an exec nothing closes by itself, least of all our end of its stdin */
		_exit(work(argument));
	}
	if (pid < 0) {
		error = error ? error : errno;
		close_all(ours);
		close_all(theirs);
		channel_not_started(c, id, error, strerror(error));
		return;
	}
	close_all(theirs);
	channel_attach_process(channel_new(c, id), pid, ours[0], ours[1], ours[2]);
}

void spawn_answer(struct connection *c, uint32_t id, int (*work)(void *), void *argument)
{
	pid_t pid = fork();
	if (pid == 0) {
		prepare_child(0, 1, 2, false);
		close_range(3, ~0U, 0);
		_exit(work(argument));
	}
	if (pid < 0) {
		send_result(c, id, errno, NULL);
		return;
	}
	struct channel *ch = channel_new(c, id);
	ch->answers = true;
	ch->survives = true; /* what was asked for is done, whether the host still listens or not */
	channel_attach_process(ch, pid, -1, -1, -1);
}
