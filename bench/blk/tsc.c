/* Prints how many kHz this machine's time-stamp counter runs at: QEMU's TCG hands it to guests as it is. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_RAW, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

int main(void) {
  long long began = now();
  unsigned long long ticks = __rdtsc();
  struct timespec pause = {0, 200000000};
  nanosleep(&pause, NULL);
  ticks = __rdtsc() - ticks;
  printf("%.0f\n", ticks * 1e6 / (now() - began));
  return 0;
}
