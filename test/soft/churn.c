/*
 * Machine code that comes and goes: each round writes functions with constants of their own into fresh pages, runs them until
 * they are hot, checks what they return, and gives the pages back. Arguments: rounds, seed.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGES 64
#define PAGE 4096
#define FUNCTION 64
#define CALLS 400

/* mov eax, A; mov ecx, 16; 1: imul eax, eax, B; add eax, C; dec ecx; jnz 1b; ret */
static uint8_t *write_function(uint8_t *at, uint32_t a, uint32_t b, uint32_t c) {
    *at++ = 0xb8, memcpy(at, &a, 4), at += 4;
    *at++ = 0xb9, memcpy(at, (uint32_t[]){16}, 4), at += 4;
    uint8_t *loop = at;
    *at++ = 0x69, *at++ = 0xc0, memcpy(at, &b, 4), at += 4;
    *at++ = 0x05, memcpy(at, &c, 4), at += 4;
    *at++ = 0xff, *at++ = 0xc9;
    *at++ = 0x75, *at = (uint8_t)(loop - (at + 1)), at++;
    *at++ = 0xc3;
    return at;
}

static uint32_t expected(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 16; i++) a = a * b + c;
    return a;
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 1;
    uint32_t seed = argc > 2 ? (uint32_t)atoi(argv[2]) : 1;
    int per_page = PAGE / FUNCTION;
    for (int round = 0; round < rounds; round++) {
        uint8_t *code = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (code == MAP_FAILED) return perror("churn: mmap"), 1;
        for (int n = 0; n < PAGES * per_page; n++) {
            uint32_t a = seed = seed * 1664525 + 1013904223, b = a ^ 0x5bd1e995, c = (uint32_t)n;
            write_function(code + n * FUNCTION, a, b, c);
            uint32_t want = expected(a, b, c);
            for (int call = 0; call < CALLS; call++) {
                uint32_t got = ((uint32_t(*)(void))(code + n * FUNCTION))();
                if (got != want) return fprintf(stderr, "churn: function %d of round %d gave %x, not %x\n", n, round, got, want), 1;
            }
        }
        munmap(code, PAGES * PAGE);
    }
    printf("churn: %d functions\n", rounds * PAGES * per_page);
    return 0;
}
