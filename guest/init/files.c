/* File requests that have one answer; those that may take long are worked out by a child. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

/* A listing that does not fit in one frame is an error; the host then asks for it as a stream (FRAME_LIST_OUT). */
#define LIST_MAX (FRAME_PAYLOAD_MAX - 64)

int make_directories(const char *path, mode_t mode)
{
	char *copy = must_format("%s", path);
	int result = 0;
	for (char *at = copy + 1; result == 0; at++) {
		if (*at != '/' && *at != 0)
			continue;
		char end = *at;
		*at = 0;
		struct stat st;
		if (mkdir(copy, mode) && (errno != EEXIST || stat(copy, &st) || !S_ISDIR(st.st_mode)))
			result = errno == EEXIST ? ENOTDIR : errno;
		*at = end;
		if (end == 0)
			break;
	}
	free(copy);
	return result;
}

static void put_stat(struct queue *q, const struct stat *st, const char *link)
{
	put_u32(q, st->st_mode);
	put_u32(q, st->st_uid);
	put_u32(q, st->st_gid);
	put_u64(q, (uint64_t)st->st_size);
	put_u64(q, (uint64_t)st->st_mtim.tv_sec);
	put_u32(q, (uint32_t)st->st_mtim.tv_nsec);
	put_u64(q, st->st_ino);
	put_u32(q, (uint32_t)st->st_nlink);
	put_string(q, link);
}

static int stat_path(int folder, const char *name, bool follow, struct queue *q)
{
	struct stat st;
	char link[4096] = "";
	if (fstatat(folder, name, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW))
		return errno;
	if (S_ISLNK(st.st_mode)) {
		ssize_t n = readlinkat(folder, name, link, sizeof link - 1);
		link[n < 0 ? 0 : n] = 0;
	}
	put_stat(q, &st, link);
	return 0;
}

int list_directory(const char *path, struct queue *q, size_t limit)
{
	DIR *dir = opendir(path);
	if (!dir)
		return errno;
	int error = 0;
	struct dirent *entry;
	while (!error && (entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		struct queue one = { 0 };
		put_string(&one, entry->d_name);
		/* An entry that vanished meanwhile is left out. */
		if (stat_path(dirfd(dir), entry->d_name, false, &one) == 0)
			queue_append(q, queue_head(&one), queue_size(&one));
		queue_free(&one);
		if (queue_size(q) > limit)
			error = E2BIG;
	}
	closedir(dir);
	return error;
}

static int remove_tree(int folder, const char *name)
{
	if (unlinkat(folder, name, 0) == 0)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return errno;
	int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return errno;
	int error = 0;
	struct dirent *entry;
	while (!error && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
			error = remove_tree(dirfd(dir), entry->d_name);
	closedir(dir);
	if (!error && unlinkat(folder, name, AT_REMOVEDIR))
		error = errno;
	return error;
}

static int remove_all(void *path)
{
	return remove_tree(AT_FDCWD, path);
}

void file_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r)
{
	char *path = get_string(r);
	char *to = type == FRAME_RENAME ? get_string(r) : NULL;
	uint32_t number = type == FRAME_LIST || type == FRAME_RENAME ? 0 : get_u32(r);
	uint32_t parents = type == FRAME_MKDIR ? get_u32(r) : 0;
	struct queue reply = { 0 };
	int error;
	if (r->bad || path[0] != '/' || (to && to[0] != '/'))
		error = EINVAL;
	else if (type == FRAME_STAT)
		error = stat_path(AT_FDCWD, path, number, &reply);
	else if (type == FRAME_LIST)
		error = list_directory(path, &reply, LIST_MAX);
	else if (type == FRAME_MKDIR)
		error = parents ? make_directories(path, number) : mkdir(path, number) ? errno : 0;
	else if (type == FRAME_RENAME)
		error = rename(path, to) ? errno : 0;
	else if (type == FRAME_REMOVE && number) {
		spawn_answer(c, id, remove_all, path);
		goto done;
	} else if (type == FRAME_REMOVE)
		error = remove(path) ? errno : 0;
	else
		error = chmod(path, number) ? errno : 0;
	send_result(c, id, error, error ? NULL : &reply);
	queue_free(&reply);
done:
	free(path);
	free(to);
}
