/* Watching files for the host, by inotify. A recursive watch follows directories as they appear. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

#define WATCHED (IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF)

struct file_watch {
	struct watcher inotify; /* first: the loop's handler casts back */
	struct channel *channel;
	bool recursive;
	struct folder {
		struct folder *next;
		int number;
		bool top; /* what was asked for; the others are told of by their parents, too */
		char path[];
	} *folders;
};

static void report(struct file_watch *w, uint32_t kind, const char *path)
{
	struct queue q = { 0 };
	put_u32(&q, kind);
	put_string(&q, path);
	connection_send(w->channel->connection, w->channel->id, FRAME_EVENT, 0, 0, queue_head(&q), queue_size(&q));
	queue_free(&q);
}

static char *below(const char *folder, const char *name)
{
	return must_format("%s/%s", strcmp(folder, "/") ? folder : "", name);
}

static int add_folder(struct file_watch *w, const char *path)
{
	int number = inotify_add_watch(w->inotify.fd, path, WATCHED);
	if (number < 0)
		return errno;
	for (struct folder *f = w->folders; f; f = f->next)
		if (f->number == number)
			return 0;
	struct folder *f = must_alloc(sizeof *f + strlen(path) + 1);
	f->number = number;
	f->top = !w->folders;
	strcpy(f->path, path);
	f->next = w->folders;
	w->folders = f;
	return 0;
}

/* With `tell`, reports what is there already: it came before the watch did. */
static int add_tree(struct file_watch *w, const char *path, bool tell)
{
	int error = add_folder(w, path);
	DIR *dir = error || !w->recursive ? NULL : opendir(path);
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		char *inside = below(path, entry->d_name);
		if (tell)
			report(w, EVENT_CREATED, inside);
		if (entry->d_type == DT_DIR)
			add_tree(w, inside, tell); /* one that vanished meanwhile is no loss */
		free(inside);
	}
	if (dir)
		closedir(dir);
	return error;
}

/* Forgets a directory that was moved away, with all below it: where it comes to be, if here, it is found anew. */
static void drop_tree(struct file_watch *w, const char *path)
{
	size_t length = strlen(path);
	for (struct folder **link = &w->folders; *link;) {
		struct folder *f = *link;
		if (f->top || strncmp(f->path, path, length) || (f->path[length] && f->path[length] != '/')) {
			link = &f->next;
			continue;
		}
		inotify_rm_watch(w->inotify.fd, f->number);
		*link = f->next;
		free(f);
	}
}

static void on_event(struct file_watch *w, const struct inotify_event *event)
{
	if (event->mask & IN_Q_OVERFLOW) {
		report(w, EVENT_OVERFLOW, "");
		return;
	}
	struct folder **link = &w->folders;
	while (*link && (*link)->number != event->wd)
		link = &(*link)->next;
	struct folder *f = *link;
	if (!f)
		return;
	if (event->mask & IN_IGNORED) {
		*link = f->next;
		free(f);
		return;
	}
	if (!event->len && !f->top)
		return;
	char *path = event->len ? below(f->path, event->name) : must_format("%s", f->path);
	bool created = event->mask & (IN_CREATE | IN_MOVED_TO);
	bool removed = event->mask & (IN_DELETE | IN_MOVED_FROM | IN_DELETE_SELF | IN_MOVE_SELF);
	report(w, created ? EVENT_CREATED : removed ? EVENT_REMOVED : EVENT_CHANGED, path);
	if (event->mask & IN_MOVED_FROM && event->mask & IN_ISDIR)
		drop_tree(w, path);
	if (created && event->mask & IN_ISDIR && w->recursive)
		add_tree(w, path, true);
	free(path);
}

static void inotify_ready(struct watcher *watcher, uint32_t events)
{
	struct file_watch *w = (struct file_watch *)watcher;
	char buffer[16 * (sizeof(struct inotify_event) + NAME_MAX + 1)]
		__attribute__((aligned(__alignof__(struct inotify_event))));
	(void)events;
	/* A host that does not read leaves events with the kernel, which bounds them and reports an overflow. */
	watch_pump(w->channel);
	if (!w->inotify.events)
		return;
	ssize_t n = read(w->inotify.fd, buffer, sizeof buffer);
	for (char *at = buffer; n > 0 && at < buffer + n;) {
		struct inotify_event *event = (struct inotify_event *)at;
		on_event(w, event);
		at += sizeof *event + event->len;
	}
}

void watch_pump(struct channel *ch)
{
	if (ch->watch)
		loop_want(&ch->watch->inotify, queue_size(&ch->connection->out) <= OUT_HIGH_WATER ? EPOLLIN : 0);
}

void watch_request(struct connection *c, uint32_t id, struct reader *r)
{
	char *path = get_string(r);
	bool recursive = get_u32(r);
	if (r->bad || path[0] != '/') {
		channel_not_started(c, id, EINVAL, "the path must be absolute");
		free(path);
		return;
	}
	struct file_watch *w = must_alloc(sizeof *w);
	w->recursive = recursive;
	w->inotify.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	w->inotify.ready = inotify_ready;
	int error = w->inotify.fd < 0 ? errno : add_tree(w, path, false);
	struct channel *ch = channel_new(c, id);
	ch->watch = w;
	w->channel = ch;
	if (error) {
		char *message = must_format("%s: %s", path, strerror(error));
		channel_not_started(c, id, error, message);
		free(message);
		channel_abandon(ch);
	} else {
		uint32_t none = 0;
		loop_want(&w->inotify, EPOLLIN);
		connection_send(c, id, FRAME_STARTED, 0, 0, &none, sizeof none);
	}
	free(path);
}

void watch_free(struct channel *ch)
{
	struct file_watch *w = ch->watch;
	if (!w)
		return;
	loop_close(&w->inotify);
	while (w->folders) {
		struct folder *f = w->folders;
		w->folders = f->next;
		free(f);
	}
	free(w);
}
