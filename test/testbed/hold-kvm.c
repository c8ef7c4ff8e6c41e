/*
 * Keeps KVM in use for as long as the emulated host runs, so that its code stays as it is.
 *
 * KVM switches on parts of itself and of the scheduler with the first virtual machine and the first vCPU of a kind, and off with the
 * last, by patching instructions through INT3. QEMU's TCG (before 8.1) may translate a page while another CPU writes to it and
 * keep the old translation: then a CPU meets, for ever, a breakpoint that is no longer in memory, and the host stands still.
 * With these machines there is no first and no last.
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int give_up(const char *what) {
    perror(what);
    return 1;
}

int main(void) {
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0) return give_up("hold-kvm: /dev/kvm");
    /* One with a local APIC that stays off (apic_sw_disabled), one without (kvm_has_noapic_vcpu); both hold preempt_notifier_key. */
    for (int with_chip = 0; with_chip < 2; with_chip++) {
        int vm = ioctl(kvm, KVM_CREATE_VM, 0);
        if (vm < 0) return give_up("hold-kvm: KVM_CREATE_VM");
        if (with_chip && ioctl(vm, KVM_CREATE_IRQCHIP, 0) < 0) return give_up("hold-kvm: KVM_CREATE_IRQCHIP");
        if (ioctl(vm, KVM_CREATE_VCPU, 0) < 0) return give_up("hold-kvm: KVM_CREATE_VCPU");
    }
    puts("held");
    fflush(stdout);
    for (;;) pause();
}
