#include "boot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"

#define RAMFS_MAGIC 0x858458f6
#define TMPFS_MAGIC 0x01021994
#define END_GRACE_MS 3000
#define LATER_MAX 16

static void complain(const char *what)
{
	fprintf(stderr, "vitrine-init: %s: %s\n", what, strerror(errno));
}

static void mount_at(const char *type, const char *path, unsigned long flags, const char *options)
{
	mkdir(path, 0755);
	/* EBUSY: the kernel has mounted devtmpfs already */
	if (mount(type, path, type, flags, options) && errno != EBUSY)
		complain(path);
}

void mount_early(void)
{
	umask(022);
	mount_at("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_at("sysfs", "/sys", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	mount_at("devtmpfs", "/dev", MS_NOSUID, "mode=0755");
	mount_at("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "gid=5,mode=620,ptmxmode=666");
	mount_at("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV, NULL);
	mount_at("tmpfs", "/run", MS_NOSUID | MS_NODEV, "mode=0755");
	symlink("/proc/self/fd", "/dev/fd");
	symlink("/proc/self/fd/0", "/dev/stdin");
	symlink("/proc/self/fd/1", "/dev/stdout");
	symlink("/proc/self/fd/2", "/dev/stderr");
}

/* Modules that can wait, open: their files go with the initramfs. */
static int later[LATER_MAX];
static int later_count;

static bool load_module(int fd, const char *path)
{
	bool loaded = fd >= 0 && (syscall(SYS_finit_module, fd, "", 0) == 0 || errno == EEXIST);
	if (!loaded)
		complain(path);
	if (fd >= 0)
		close(fd);
	return loaded;
}

int load_modules(bool all)
{
	FILE *order = fopen("/lib/modules/load-order", "re");
	char path[512];
	int count = 0;
	bool can_wait = false;
	while (order && fgets(path, sizeof path, order)) {
		path[strcspn(path, "\n")] = 0;
		if (!path[0]) {
			can_wait = !all;
			continue;
		}
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (can_wait && fd >= 0 && later_count < LATER_MAX)
			later[later_count++] = fd;
		else
			count += load_module(fd, path);
	}
	if (order)
		fclose(order);
	return count;
}

static pid_t loader;

bool loads_modules(void)
{
	return loader > 0 && kill(loader, 0) == 0;
}

void load_later_modules(void)
{
	loader = later_count ? fork() : -1;
	if (loader == 0) {
		setpriority(PRIO_PROCESS, 0, 19);
		for (int i = 0; i < later_count; i++)
			load_module(later[i], "a module");
		_exit(0);
	}
	while (later_count)
		close(later[--later_count]);
}

const char *boot_option(const char *name)
{
	static char line[4096];
	if (!line[0]) {
		int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
		line[n < 0 ? 0 : n] = 0;
		line[strcspn(line, "\n")] = 0;
		if (fd >= 0)
			close(fd);
	}
	size_t length = strlen(name);
	for (const char *at = line; *at;) {
		bool quoted = false;
		const char *end = at;
		while (*end && (quoted || *end != ' '))
			if (*end++ == '"')
				quoted = !quoted;
		/* The kernel shows name="some value" as name="some value" or "name=some value". */
		const char *start = *at == '"' ? at + 1 : at;
		if (!strncmp(start, "vitrine.", 8) && !strncmp(start + 8, name, length) && start[8 + length] == '=') {
			char *value = must_format("%.*s", (int)(end - start - 9 - (int)length), start + 9 + length);
			size_t size = strlen(value);
			if (size && value[size - 1] == '"')
				value[size - 1] = 0;
			return value[0] == '"' ? value + 1 : value;
		}
		at = *end ? end + 1 : end;
	}
	return NULL;
}

/* Deletes everything on the initramfs itself, not what is mounted on it. */
static void empty(int folder, dev_t device)
{
	DIR *dir = fdopendir(folder);
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		struct stat st;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") ||
		    fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || st.st_dev != device)
			continue;
		if (S_ISDIR(st.st_mode)) {
			int below = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (below >= 0)
				empty(below, device);
		}
		unlinkat(dirfd(dir), entry->d_name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0);
	}
	if (dir)
		closedir(dir);
}

/* Disks appear a moment after their driver is loaded. */
static bool wait_for(const char *path)
{
	for (int tries = 0; tries < 500; tries++) {
		if (access(path, F_OK) == 0)
			return true;
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
	}
	return false;
}

bool enter_root(const char *device)
{
	static const char *const moved[] = { "/dev", "/proc", "/sys", "/run" };
	struct statfs fs;
	struct stat st;
	mkdir("/newroot", 0755);
	if (!wait_for(device) || mount(device, "/newroot", "ext4", MS_NOATIME, NULL)) {
		complain(device);
		return false;
	}
	int old = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < sizeof moved / sizeof *moved; i++) {
		char target[32];
		snprintf(target, sizeof target, "/newroot%s", moved[i]);
		mkdir(target, 0755);
		if (mount(moved[i], target, NULL, MS_MOVE, NULL))
			complain(target);
	}
	if (fstatfs(old, &fs) == 0 && (fs.f_type == RAMFS_MAGIC || fs.f_type == TMPFS_MAGIC) && fstat(old, &st) == 0)
		empty(old, st.st_dev);
	if (chdir("/newroot") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/")) {
		complain("switching to the new root");
		return false;
	}
	mount_at("tmpfs", "/tmp", MS_NOSUID | MS_NODEV, NULL);
	return true;
}

/* True once no process but us is left; gives up after a while. */
static void wait_for_all(int milliseconds)
{
	for (uint64_t end = now_ms() + (uint64_t)milliseconds; now_ms() < end;) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);
		if (pid < 0 && errno == ECHILD)
			return;
		if (pid == 0)
			nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	}
}

void stop_machine(int how)
{
	kill(-1, SIGTERM);
	kill(-1, SIGCONT);
	wait_for_all(END_GRACE_MS);
	kill(-1, SIGKILL);
	wait_for_all(END_GRACE_MS);
	sync();
	mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
	reboot(how == 1 ? RB_AUTOBOOT : RB_POWER_OFF);
	for (;;)
		pause();
}
