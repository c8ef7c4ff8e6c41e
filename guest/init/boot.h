/* From the kernel's first process to a usable system. Failures are printed and, where possible, survived. */
#ifndef VITRINE_BOOT_H
#define VITRINE_BOOT_H

#include <stdbool.h>

void mount_early(void);
/*
 * Loads what /lib/modules/load-order lists, in its order; how many. What stands after an empty line there can wait: unless `all` is
 * asked for it is only opened, for load_later_modules.
 */
int load_modules(bool all);
/* Loads, in a process of its own that leaves others the CPU, what load_modules has left. */
void load_later_modules(void);
/* Whether it is still at that. */
bool loads_modules(void);
/* The value of a vitrine.NAME=VALUE of the kernel's command line (quotes allowed), or NULL. Never freed. */
const char *boot_option(const char *name);
/* Mounts `device` and makes it the root; what the initramfs held is deleted, which frees its memory. */
bool enter_root(const char *device);
/* Ends all processes, writes everything out and stops the machine: 0 power off, 1 reboot. */
void stop_machine(int how) __attribute__((noreturn));

#endif
