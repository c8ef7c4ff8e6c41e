/*
 * The peer of the exits benchmark: the same micro-guests as ours, driven from C in the plainest way. Reads commands from
 * standard input, one a line ("port N", "mmio N"), runs N exits, and prints the nanoseconds that they took.
 *
 *   mapped file (argv[1]): guest RAM as the benchmark wrote it: tables, code, data
 *   argv[2]: system and general registers as struct kvm_sregs and struct kvm_regs, for "port" then for "mmio"
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct start {
	struct kvm_sregs sregs;
	struct kvm_regs regs;
};

/* What a device model would keep: enough that no access can be optimised away. */
static volatile uint64_t sink;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void port_write(uint16_t port, const uint8_t *data, int size)
{
	uint32_t value = 0;
	memcpy(&value, data, size);
	sink += port + value;
}

static void mmio_write(uint64_t address, const uint8_t *data, int size)
{
	uint64_t value = 0;
	memcpy(&value, data, size);
	sink += address + value;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int ram_fd = open(argv[1], O_RDWR);
	struct stat st;
	if (ram_fd < 0 || fstat(ram_fd, &st) < 0)
		die(argv[1]);
	void *ram = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, ram_fd, 0);
	if (ram == MAP_FAILED)
		die("mmap");
	struct start starts[2];
	int start_fd = open(argv[2], O_RDONLY);
	if (start_fd < 0 || read(start_fd, starts, sizeof starts) != sizeof starts)
		die(argv[2]);

	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		die("/dev/kvm");
	int vm = ioctl(kvm, KVM_CREATE_VM, 0);
	if (vm < 0)
		die("KVM_CREATE_VM");
	ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000UL);
	struct kvm_userspace_memory_region region = { 0, 0, 0, st.st_size, (uintptr_t)ram };
	if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
		die("KVM_SET_USER_MEMORY_REGION");
	int vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_run *run = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (vcpu < 0 || run == MAP_FAILED)
		die("vCPU");
	struct {
		struct kvm_cpuid2 head;
		struct kvm_cpuid_entry2 entries[256];
	} cpuid = { .head = { .nent = 256 } };
	if (ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid) < 0 || ioctl(vcpu, KVM_SET_CPUID2, &cpuid) < 0)
		die("CPUID");

	char kind[8];
	long exits;
	while (scanf("%7s %ld", kind, &exits) == 2) {
		struct start *start = &starts[strcmp(kind, "mmio") == 0];
		struct kvm_sregs now;
		if (ioctl(vcpu, KVM_GET_SREGS, &now) < 0)
			die("KVM_GET_SREGS");
		start->sregs.apic_base = now.apic_base;
		if (ioctl(vcpu, KVM_SET_SREGS, &start->sregs) < 0 || ioctl(vcpu, KVM_SET_REGS, &start->regs) < 0)
			die("registers");
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (long i = 0; i < exits; i++) {
			if (ioctl(vcpu, KVM_RUN, 0) < 0)
				die("KVM_RUN");
			switch (run->exit_reason) {
			case KVM_EXIT_IO: {
				uint8_t *data = (uint8_t *)run + run->io.data_offset;
				for (uint32_t n = 0; n < run->io.count; n++, data += run->io.size)
					if (run->io.direction == KVM_EXIT_IO_OUT)
						port_write(run->io.port, data, run->io.size);
				break;
			}
			case KVM_EXIT_MMIO:
				if (run->mmio.is_write)
					mmio_write(run->mmio.phys_addr, run->mmio.data, run->mmio.len);
				break;
			default:
				fprintf(stderr, "unexpected exit %u\n", run->exit_reason);
				return 1;
			}
		}
		clock_gettime(CLOCK_MONOTONIC, &b);
		/* The last access completes on re-entry, as ours does. */
		run->immediate_exit = 1;
		ioctl(vcpu, KVM_RUN, 0);
		run->immediate_exit = 0;
		printf("%lld\n", (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec));
		fflush(stdout);
	}
	return 0;
}
