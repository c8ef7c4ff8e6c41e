/* From the kernel's first process to a usable system. Failures are printed and, where possible, survived. */
#ifndef VITRINE_BOOT_H
#define VITRINE_BOOT_H

#include <stdbool.h>

void mount_early(void);
/* Loads what /lib/modules/load-order lists, in its order; how many. */
int load_modules(void);
/* The value of a vitrine.NAME=VALUE of the kernel's command line (quotes allowed), or NULL. Never freed. */
const char *boot_option(const char *name);
/* Mounts `device` and makes it the root; what the initramfs held is deleted, which frees its memory. */
bool enter_root(const char *device);
/* Ends all processes, writes everything out and stops the machine: 0 power off, 1 reboot. */
void stop_machine(int how) __attribute__((noreturn));

#endif
