#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <net/route.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define INTERFACE "eth0"

static struct ifreq request_for(const char *interface)
{
	struct ifreq r = { 0 };
	snprintf(r.ifr_name, sizeof r.ifr_name, "%s", interface);
	return r;
}

int bring_up(const char *interface)
{
	struct ifreq r = request_for(interface);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int error = 0;
	if (fd < 0)
		return errno;
	if (ioctl(fd, SIOCGIFFLAGS, &r)) {
		error = errno;
	} else {
		r.ifr_flags |= IFF_UP | IFF_RUNNING;
		if (ioctl(fd, SIOCSIFFLAGS, &r))
			error = errno;
	}
	close(fd);
	return error;
}

/* Cuts "/len" off an address; the length, or -1. */
static int take_prefix(char *address, int longest)
{
	char *slash = strchr(address, '/');
	if (!slash)
		return -1;
	*slash = 0;
	int length = atoi(slash + 1);
	return length >= 0 && length <= longest ? length : -1;
}

static void set_in(struct sockaddr *target, struct in_addr address)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr = address };
	memcpy(target, &in, sizeof in);
}

static int set_address4(int fd, char *text)
{
	struct ifreq r = request_for(INTERFACE);
	struct in_addr address, mask;
	int length = take_prefix(text, 32);
	if (length < 0 || inet_pton(AF_INET, text, &address) != 1)
		return EINVAL;
	mask.s_addr = length ? htonl(UINT32_MAX << (32 - length)) : 0;
	set_in(&r.ifr_addr, address);
	if (ioctl(fd, SIOCSIFADDR, &r))
		return errno;
	set_in(&r.ifr_netmask, mask);
	return ioctl(fd, SIOCSIFNETMASK, &r) ? errno : 0;
}

static int set_gateway4(int fd, const char *text)
{
	struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };
	struct in_addr gateway, any = { 0 };
	if (inet_pton(AF_INET, text, &gateway) != 1)
		return EINVAL;
	set_in(&route.rt_dst, any);
	set_in(&route.rt_genmask, any);
	set_in(&route.rt_gateway, gateway);
	return ioctl(fd, SIOCADDRT, &route) && errno != EEXIST ? errno : 0;
}

static int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return errno;
	size_t length = strlen(text);
	int error = write(fd, text, length) == (ssize_t)length ? 0 : EIO;
	close(fd);
	return error;
}

/* Whether it is a file of that length, and nobody else's under another name: then the text goes over what is there, in one piece. */
static bool overwrite(const char *path, const char *text)
{
	struct stat st;
	size_t length = strlen(text);
	int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return false;
	bool done = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_size == (off_t)length &&
		    pwrite(fd, text, length, 0) == (ssize_t)length;
	close(fd);
	return done;
}

/*
 * Puts a file in /etc in place of whatever is there, often a link that leads nowhere. An image need not have an /etc, nor
 * room for it: programs then do without, and the box starts all the same. Making a file takes ten times as long as writing over one.
 */
static void write_etc(const char *name, const char *text)
{
	char path[64], beside[80];
	snprintf(path, sizeof path, "/etc/%s", name);
	if (overwrite(path, text))
		return;
	snprintf(beside, sizeof beside, "%s.vitrine", path);
	mkdir("/etc", 0755);
	if (write_text(beside, text) || rename(beside, path))
		unlink(beside);
}

static int set_ipv6(char *address, const char *gateway)
{
	struct ifreq r = request_for(INTERFACE);
	struct in6_ifreq a = { 0 };
	int length = take_prefix(address, 128);
	if (length < 0 || inet_pton(AF_INET6, address, &a.ifr6_addr) != 1)
		return EINVAL;
	/* Nobody else is on this link: an address need not wait a second for duplicates. */
	write_text("/proc/sys/net/ipv6/conf/" INTERFACE "/accept_dad", "0\n");
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return errno == EAFNOSUPPORT ? 0 : errno; /* a kernel without IPv6 has no IPv6 */
	int error = ioctl(fd, SIOCGIFINDEX, &r) ? errno : 0;
	a.ifr6_prefixlen = (uint32_t)length;
	a.ifr6_ifindex = r.ifr_ifindex;
	if (!error && ioctl(fd, SIOCSIFADDR, &a) && errno != EEXIST)
		error = errno;
	if (!error && *gateway) {
		struct in6_rtmsg route = { .rtmsg_flags = RTF_UP | RTF_GATEWAY, .rtmsg_metric = 1,
					   .rtmsg_ifindex = r.ifr_ifindex };
		if (inet_pton(AF_INET6, gateway, &route.rtmsg_gateway) != 1)
			error = EINVAL;
		else if (ioctl(fd, SIOCADDRT, &route) && errno != EEXIST)
			error = errno;
	}
	close(fd);
	return error;
}

static int name_host(const struct identity *identity)
{
	char text[1024], address[64];
	snprintf(address, sizeof address, "%s", *identity->address4 ? identity->address4 : "127.0.1.1");
	address[strcspn(address, "/")] = 0;
	if (sethostname(identity->hostname, strlen(identity->hostname)))
		return errno;
	snprintf(text, sizeof text, "%s\n", identity->hostname);
	write_etc("hostname", text);
	snprintf(text, sizeof text, "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n%s\t%s\n", address,
		 identity->hostname);
	write_etc("hosts", text);
	return 0;
}

/* A machine that was restored has the card of the one that was saved, until it is told. virtio_net changes it while it is up. */
static int set_mac(int fd, const char *text)
{
	struct ifreq r = request_for(INTERFACE);
	unsigned char mac[6];
	if (sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", mac, mac + 1, mac + 2, mac + 3, mac + 4, mac + 5) != 6)
		return EINVAL;
	if (ioctl(fd, SIOCGIFHWADDR, &r))
		return errno;
	if (!memcmp(r.ifr_hwaddr.sa_data, mac, sizeof mac))
		return 0;
	memcpy(r.ifr_hwaddr.sa_data, mac, sizeof mac);
	return ioctl(fd, SIOCSIFHWADDR, &r) ? errno : 0;
}

static int set_addresses(int fd, const struct identity *identity)
{
	int error = bring_up(INTERFACE);
	if (!error)
		error = set_address4(fd, identity->address4);
	if (!error && *identity->gateway4)
		error = set_gateway4(fd, identity->gateway4);
	if (!error && *identity->address6)
		error = set_ipv6(identity->address6, identity->gateway6);
	return error;
}

/* The addresses and the resolver as one text. */
static void describe(const struct identity *i, char *text, size_t size)
{
	snprintf(text, size, "%s %s %s %s %s", i->address4, i->gateway4, i->address6, i->gateway6, i->resolver);
}

/*
 * What was applied last. A machine that goes on from a snapshot has it in its memory, and has those addresses: then it is
 * told only what is its own, its name and its card's address.
 */
static char applied[512];

int apply_identity(const struct identity *identity)
{
	char wanted[sizeof applied];
	describe(identity, wanted, sizeof wanted);
	bool has_addresses = !strcmp(wanted, applied);
	int error = *identity->hostname ? name_host(identity) : 0;
	if (!error && *identity->resolver && !has_addresses) {
		char text[256];
		snprintf(text, sizeof text, "nameserver %s\n", identity->resolver);
		write_etc("resolv.conf", text);
	}
	if (error || !*identity->address4)
		return error;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return errno;
	error = *identity->mac ? set_mac(fd, identity->mac) : 0;
	if (!error && !has_addresses)
		error = set_addresses(fd, identity);
	close(fd);
	snprintf(applied, sizeof applied, "%s", error ? "" : wanted);
	return error;
}
