/*
 * Requests that stream file contents. Each runs in a forked child whose stdin and stdout are the channel's streams, so
 * that a slow disk or a slow host stalls nobody else.
 *
 * A tree is a stream of entries, each followed by `size` bytes when it is a regular file; type 0 ends it:
 *
 *   u8 type ('d' directory, 'f' file, 'l' symlink, 'h' hard link, 'c' 'b' devices, 'p' fifo, 's' socket)
 *   u32 mode, u32 uid, u32 gid, u64 size, u64 seconds, u32 nanoseconds, u32 major, u32 minor
 *   string path relative to the root of the tree ("" for the root itself), string link target
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "agent.h"

#define COPY_SIZE (64 * 1024)
#define PATH_LIMIT 4096

struct job {
	char *path;
	uint64_t offset, length;
	uint32_t mode, flags;
};

static int fail(const char *path)
{
	dprintf(2, "%s: %s", path, strerror(errno));
	return errno ? errno & 0xff : 1;
}

static bool write_all(int fd, const void *bytes, size_t size)
{
	for (const char *at = bytes; size > 0;) {
		ssize_t n = write(fd, at, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

/* Reads exactly `size` bytes; false at the end or on an error. */
static bool read_all(int fd, void *bytes, size_t size)
{
	for (char *at = bytes; size > 0;) {
		ssize_t n = read(fd, at, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		size -= (size_t)n;
	}
	return true;
}

/* Copies up to `length` bytes; how many there were, or -1. */
static int64_t copy(int from, int to, uint64_t length)
{
	static char buffer[COPY_SIZE];
	uint64_t done = 0;
	while (done < length) {
		size_t want = length - done < sizeof buffer ? (size_t)(length - done) : sizeof buffer;
		ssize_t n = read(from, buffer, want);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 || (n > 0 && !write_all(to, buffer, (size_t)n)))
			return -1;
		if (n == 0)
			break;
		done += (uint64_t)n;
	}
	return (int64_t)done;
}

static int read_file(void *argument)
{
	struct job *job = argument;
	int fd = open(job->path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	if (fd < 0 || fstat(fd, &st))
		return fail(job->path);
	if (S_ISDIR(st.st_mode)) {
		errno = EISDIR;
		return fail(job->path);
	}
	if (job->offset && lseek(fd, (off_t)job->offset, SEEK_SET) < 0)
		return fail(job->path);
	return copy(fd, 1, job->length) < 0 ? fail(job->path) : 0;
}

/* A file without a name in the folder of `path`, so that it goes when we do; where there are none, one with a name. */
static int open_nameless(const char *folder, const char *beside, mode_t mode, bool *named)
{
	int fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
	*named = fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT);
	return *named ? open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode) : fd;
}

/* Gives it a name. A link replaces nothing, so that takes another name first. */
static bool put_in_place(int fd, bool named, bool exists, const char *beside, const char *path)
{
	char self[32];
	snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
	if (!named && !exists && linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0)
		return true;
	if (!named && linkat(AT_FDCWD, self, AT_FDCWD, beside, AT_SYMLINK_FOLLOW))
		return false;
	return rename(beside, path) == 0;
}

/* A whole file appears at once: written without a name, then put in its place. Appending writes in place. */
static int write_file(void *argument)
{
	struct job *job = argument;
	/* A link stays: what it leads to is written. One that leads nowhere yet is left to open(). */
	struct stat link;
	bool is_link = lstat(job->path, &link) == 0 && S_ISLNK(link.st_mode);
	char *real = is_link && !(job->flags & WRITE_EXCLUSIVE) ? realpath(job->path, NULL) : NULL;
	if (real)
		job->path = real; /* in the child, which ends soon */
	bool append = job->flags & WRITE_APPEND, exclusive = job->flags & WRITE_EXCLUSIVE;
	struct stat st;
	bool exists = stat(job->path, &st) == 0;
	bool in_place = append || exclusive || (is_link && !real) || (exists && (!S_ISREG(st.st_mode) || st.st_nlink > 1));
	char *slash = strrchr(job->path, '/');
	if (slash != job->path) {
		*slash = 0;
		int error = make_directories(job->path, 0755);
		*slash = '/';
		if (error) {
			errno = error;
			return fail(job->path);
		}
	}
	char *folder = must_format("%.*s", slash == job->path ? 1 : (int)(slash - job->path), job->path);
	char *beside = must_format("%s/.vitrine-%d", folder, (int)getpid());
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : exclusive ? O_EXCL : O_TRUNC);
	mode_t mode = job->mode ? job->mode : exists ? st.st_mode & 07777 : 0644;
	bool named = false;
	int fd = in_place ? open(job->path, flags, mode) : open_nameless(folder, beside, mode, &named);
	if (fd < 0)
		return fail(job->path);
	if (!append || job->mode)
		fchmod(fd, mode);
	if (exists && !in_place && fchown(fd, st.st_uid, st.st_gid) < 0)
		errno = 0;
	if (copy(0, fd, UINT64_MAX) < 0 || (!in_place && !put_in_place(fd, named, exists, beside, job->path)) || close(fd)) {
		int error = errno;
		if (!in_place)
			unlink(beside);
		errno = error;
		return fail(job->path);
	}
	return 0;
}

/* Hard links seen on the way out: the first path of each inode. */
#define SEEN_BUCKETS 65536
static struct seen {
	struct seen *next;
	dev_t device;
	ino_t inode;
	char path[];
} * seen_links[SEEN_BUCKETS];

static const char *first_path_of(const struct stat *st, const char *path)
{
	struct seen **bucket = &seen_links[st->st_ino % SEEN_BUCKETS];
	for (struct seen *s = *bucket; s; s = s->next)
		if (s->device == st->st_dev && s->inode == st->st_ino)
			return s->path;
	struct seen *s = must_alloc(sizeof *s + strlen(path) + 1);
	s->device = st->st_dev;
	s->inode = st->st_ino;
	strcpy(s->path, path);
	s->next = *bucket;
	*bucket = s;
	return NULL;
}

static bool send_entry(char type, const struct stat *st, const char *path, const char *link)
{
	struct queue q = { 0 };
	queue_append(&q, &type, 1);
	put_u32(&q, st->st_mode & 07777);
	put_u32(&q, st->st_uid);
	put_u32(&q, st->st_gid);
	put_u64(&q, type == 'f' ? (uint64_t)st->st_size : 0);
	put_u64(&q, (uint64_t)st->st_mtim.tv_sec);
	put_u32(&q, (uint32_t)st->st_mtim.tv_nsec);
	put_u32(&q, major(st->st_rdev));
	put_u32(&q, minor(st->st_rdev));
	put_string(&q, path);
	put_string(&q, link);
	bool ok = write_all(1, queue_head(&q), queue_size(&q));
	queue_free(&q);
	return ok;
}

/* What a tree could not be sent for, if it is not its root. */
static char *culprit;

static bool blame(const char *path)
{
	int error = errno;
	if (!culprit)
		culprit = must_format("%s", path);
	errno = error;
	return false;
}

/* A file that shrinks while it is read is filled with zeros: its size has been promised. */
static bool send_contents(int fd, uint64_t size)
{
	static const char zeros[COPY_SIZE];
	int64_t done = copy(fd, 1, size);
	if (done < 0)
		return false;
	for (uint64_t left = size - (uint64_t)done; left > 0;) {
		size_t part = left < sizeof zeros ? (size_t)left : sizeof zeros;
		if (!write_all(1, zeros, part))
			return false;
		left -= part;
	}
	return true;
}

static bool send_file(int folder, const char *name, const char *path)
{
	int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	if (fd < 0)
		return errno == ENOENT || blame(path); /* vanished meanwhile */
	bool ok = fstat(fd, &st) == 0 && send_entry('f', &st, path, "") && send_contents(fd, (uint64_t)st.st_size);
	if (!ok)
		blame(path);
	close(fd);
	return ok;
}

static bool send_tree(int folder, const char *name, const char *path)
{
	struct stat st;
	if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT || blame(path);
	if (S_ISLNK(st.st_mode)) {
		char link[PATH_LIMIT];
		ssize_t n = readlinkat(folder, name, link, sizeof link - 1);
		link[n < 0 ? 0 : n] = 0;
		return send_entry('l', &st, path, link);
	}
	if (!S_ISDIR(st.st_mode) && st.st_nlink > 1) {
		const char *first = first_path_of(&st, path);
		if (first)
			return send_entry('h', &st, path, first);
	}
	if (S_ISREG(st.st_mode))
		return send_file(folder, name, path);
	if (!S_ISDIR(st.st_mode)) {
		char type = S_ISCHR(st.st_mode) ? 'c' : S_ISBLK(st.st_mode) ? 'b' : S_ISFIFO(st.st_mode) ? 'p' : 's';
		return send_entry(type, &st, path, "");
	}
	if (!send_entry('d', &st, path, ""))
		return false;
	int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return errno == ENOENT || blame(path);
	bool ok = true;
	struct dirent *entry;
	while (ok && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		char *below = *path ? must_format("%s/%s", path, entry->d_name) : must_format("%s", entry->d_name);
		ok = send_tree(dirfd(dir), entry->d_name, below);
		free(below);
	}
	closedir(dir);
	return ok;
}

static int tree_out(void *argument)
{
	struct job *job = argument;
	static const char end = 0;
	struct stat st;
	if (lstat(job->path, &st))
		return fail(job->path);
	if (!send_tree(AT_FDCWD, job->path, "") || !write_all(1, &end, 1))
		return fail(culprit && *culprit ? must_format("%s/%s", job->path, culprit) : job->path);
	return 0;
}

static int list_out(void *argument)
{
	struct job *job = argument;
	struct queue q = { 0 };
	errno = list_directory(job->path, &q, SIZE_MAX);
	return errno || !write_all(1, queue_head(&q), queue_size(&q)) ? fail(job->path) : 0;
}

static bool read_text(char text[PATH_LIMIT])
{
	uint32_t length;
	if (!read_all(0, &length, 4) || length >= PATH_LIMIT || !read_all(0, text, length)) {
		errno = EPROTO;
		return false;
	}
	text[length] = 0;
	return true;
}

static bool climbs(const char *path)
{
	for (const char *at = path; at; at = strchr(at, '/'), at = at ? at + 1 : NULL)
		if (at[0] == '.' && at[1] == '.' && (at[2] == '/' || at[2] == 0))
			return true;
	return path[0] == '/';
}

static bool make_entry(char type, const char *path, const char *link, mode_t mode, uint64_t size, dev_t device)
{
	if (type == 'd')
		return mkdir(path, 0700) == 0 || errno == EEXIST;
	if (type != 'h' || strcmp(path, link) != 0)
		unlink(path);
	switch (type) {
	case 'f': {
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (fd < 0)
			return false;
		int64_t done = copy(0, fd, size);
		if (done >= 0 && (uint64_t)done < size)
			errno = EPROTO;
		return close(fd) == 0 && (uint64_t)done == size;
	}
	case 'l':
		return symlink(link, path) == 0;
	case 'h':
		return !climbs(link) && link[0] && linkat(AT_FDCWD, link, AT_FDCWD, path, 0) == 0;
	case 'c':
		return mknod(path, S_IFCHR | mode, device) == 0;
	case 'b':
		return mknod(path, S_IFBLK | mode, device) == 0;
	case 'p':
		return mkfifo(path, mode) == 0;
	case 's':
		return true;
	}
	errno = EPROTO;
	return false;
}

static int tree_in(void *argument)
{
	struct job *job = argument;
	int error = make_directories(job->path, 0755);
	if (error || chdir(job->path)) {
		errno = error ? error : errno;
		return fail(job->path);
	}
	for (;;) {
		struct __attribute__((packed)) {
			uint32_t mode, uid, gid;
			uint64_t size, seconds;
			uint32_t nanoseconds, device_major, device_minor;
		} head;
		char type, path[PATH_LIMIT], link[PATH_LIMIT];
		errno = EPROTO;
		if (!read_all(0, &type, 1))
			return fail(job->path);
		if (type == 0)
			return 0;
		if (!read_all(0, &head, sizeof head) || !read_text(path) || !read_text(link))
			return fail(job->path);
		if (climbs(path)) {
			errno = EINVAL;
			return fail(path);
		}
		const char *at = *path ? path : ".";
		if (!make_entry(type, at, link, head.mode, head.size, makedev(head.device_major, head.device_minor)))
			return fail(path);
		struct timespec times[2] = { { .tv_nsec = UTIME_OMIT },
					     { .tv_sec = (time_t)head.seconds, .tv_nsec = head.nanoseconds } };
		if (type != 'h' && lchown(at, head.uid, head.gid))
			return fail(path);
		if (type != 'l' && type != 'h' && type != 's' && chmod(at, head.mode))
			return fail(path);
		if (type != 'h' && type != 's' && head.nanoseconds < 1000000000)
			utimensat(AT_FDCWD, at, times, AT_SYMLINK_NOFOLLOW);
	}
}

void tree_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r)
{
	struct job job = { .path = get_string(r) };
	int (*work)(void *) = type == FRAME_TREE_OUT ? tree_out : type == FRAME_LIST_OUT ? list_out : tree_in;
	if (type == FRAME_READ_FILE) {
		work = read_file;
		job.offset = get_u64(r);
		job.length = get_u64(r);
	} else if (type == FRAME_WRITE_FILE) {
		work = write_file;
		job.mode = get_u32(r);
		job.flags = get_u32(r);
	}
	if (r->bad || job.path[0] != '/')
		channel_not_started(c, id, EINVAL, "the path must be absolute");
	else
		spawn_builtin(c, id, work, &job);
	free(job.path);
}
