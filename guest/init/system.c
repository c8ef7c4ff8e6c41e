/* Requests about the machine as a whole: time, entropy, disk, identity, figures, the end. */
#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "boot.h"
#include "network.h"

#define EXT4_IOC_RESIZE_FS _IOW('f', 16, uint64_t)
#define SEED_MAX 512

static int set_clock(struct reader *r)
{
	uint64_t ns = get_u64(r);
	if (r->bad || ns == 0)
		return r->bad ? EINVAL : 0;
	struct timespec t = { .tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000) };
	return clock_settime(CLOCK_REALTIME, &t) ? errno : 0;
}

/* Mixes the host's random bytes in and makes the kernel use them at once: copies of a machine must differ. */
static int add_entropy(struct reader *r)
{
	struct {
		struct rand_pool_info info;
		uint8_t bytes[SEED_MAX];
	} pool = { 0 };
	size_t size = reader_left(r);
	if (size == 0)
		return 0;
	if (size > SEED_MAX)
		return EINVAL;
	memcpy(pool.bytes, r->at, size);
	pool.info.buf_size = (int)size;
	pool.info.entropy_count = (int)size * 8;
	int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	int error = ioctl(fd, RNDADDENTROPY, &pool) || ioctl(fd, RNDRESEEDCRNG) ? errno : 0;
	close(fd);
	return error;
}

static int grow_root(void)
{
	struct stat st;
	struct statvfs fs;
	if (stat("/", &st) || statvfs("/", &fs))
		return errno;
	char path[64];
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/size", major(st.st_dev), minor(st.st_dev));
	FILE *file = fopen(path, "re");
	unsigned long long sectors = 0;
	if (!file)
		return errno;
	int found = fscanf(file, "%llu", &sectors);
	fclose(file);
	if (found != 1)
		return EIO;
	uint64_t blocks = sectors * 512 / fs.f_bsize;
	int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	int error = ioctl(fd, EXT4_IOC_RESIZE_FS, &blocks) ? errno : 0;
	close(fd);
	return error;
}

static int identity(struct reader *r)
{
	struct identity i;
	char **fields[] = { &i.hostname, &i.address4, &i.gateway4, &i.address6, &i.gateway6, &i.resolver, &i.mac };
	size_t count = sizeof fields / sizeof *fields;
	for (size_t f = 0; f < count; f++)
		*fields[f] = get_string(r);
	int error = r->bad ? EINVAL : apply_identity(&i);
	for (size_t f = 0; f < count; f++)
		free(*fields[f]);
	return error;
}

static uint64_t meminfo(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

static int info(struct queue *q)
{
	struct sysinfo si;
	struct statvfs fs;
	char text[4096] = "";
	if (sysinfo(&si) || statvfs("/", &fs))
		return errno;
	int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		ssize_t n = read(fd, text, sizeof text - 1);
		text[n < 0 ? 0 : n] = 0;
		close(fd);
	}
	put_u64(q, (uint64_t)si.uptime);
	put_u32(q, (uint32_t)si.procs);
	put_u32(q, (uint32_t)(si.loads[0] / 655)); /* hundredths */
	put_u64(q, meminfo(text, "MemTotal:"));
	put_u64(q, meminfo(text, "MemFree:"));
	put_u64(q, meminfo(text, "MemAvailable:"));
	put_u64(q, (uint64_t)fs.f_blocks * fs.f_frsize);
	put_u64(q, (uint64_t)fs.f_bavail * fs.f_frsize);
	put_u64(q, exec_counts.started);
	put_u64(q, exec_counts.failed);
	put_u64(q, exec_counts.started - exec_counts.ended);
	put_u32(q, loads_modules());
	return 0;
}

static int write_out(void *nothing)
{
	(void)nothing;
	sync();
	return 0;
}

void system_request(struct connection *c, uint8_t type, uint32_t id, struct reader *r)
{
	struct queue reply = { 0 };
	int error = 0;
	switch (type) {
	case FRAME_CLOCK:
		error = set_clock(r);
		if (!error)
			error = add_entropy(r);
		break;
	case FRAME_GROW:
		error = grow_root();
		break;
	case FRAME_IDENTITY:
		error = identity(r);
		break;
	case FRAME_SYNC:
		spawn_answer(c, id, write_out, NULL);
		return;
	case FRAME_INFO:
		error = info(&reply);
		break;
	case FRAME_SHUTDOWN: {
		uint32_t how = get_u32(r);
		if (r->bad || how > 1)
			error = EINVAL;
		else
			agent_stop((int)how);
		break;
	}
	}
	send_result(c, id, error, error ? NULL : &reply);
	queue_free(&reply);
}
