/*
 * Copies eight bytes on a 32-bit machine: `stores ROUNDS CPU` prints a line `CASE NS` for each case of each round. All
 * addresses are aligned to 8 bytes, except in `u64-at-4`. The program ends if a copy differs from its source.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PLACES = 8, LOOPS = 25000 };

static _Alignas(64) char source[128], target[128];

typedef uint64_t __attribute__((may_alias)) u64;
/* Volatile, so that the compiler keeps the stores separate. */
typedef volatile uint32_t __attribute__((may_alias)) u32;
/* Volatile, so that the compiler does not know the length and calls memcpy. */
static volatile size_t eight = 8;

#define COPIES(name, at, ...)                                                 \
    static void name(void)                                                    \
    {                                                                         \
        size_t len = eight;                                                   \
        (void)len;                                                            \
        for (int loop = 0; loop < LOOPS; loop++) {                            \
            _Pragma("GCC unroll 8") for (int place = 0; place < PLACES; place++) { \
                char *to = target + at + 8 * place;                           \
                const char *from = source + at + 8 * place;                   \
                __VA_ARGS__;                                                  \
                __asm__ volatile("" : : : "memory");                          \
            }                                                                 \
        }                                                                     \
    }

COPIES(copy_u64, 0, *(u64 *)to = *(const u64 *)from)
COPIES(copy_u64_at_4, 4, *(u64 *)to = *(const u64 *)from)
COPIES(copy_u32_twice, 0, ((u32 *)to)[0] = ((const u32 *)from)[0]; ((u32 *)to)[1] = ((const u32 *)from)[1])
COPIES(copy_memcpy, 0, memcpy(to, from, len))

static const struct {
    const char *name;
    void (*copy)(void);
    size_t at;
} cases[] = {{"u64", copy_u64, 0}, {"u64-at-4", copy_u64_at_4, 4}, {"u32-twice", copy_u32_twice, 0}, {"memcpy", copy_memcpy, 0}};
enum { CASES = sizeof cases / sizeof *cases };

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(arguments[2]), &cpus);
    sched_setaffinity(0, sizeof cpus, &cpus);
    for (size_t i = 0; i < sizeof source; i++)
        source[i] = 7 * i + 1;
    /* The first round warms up. */
    for (int round = 0; round <= atoi(arguments[1]); round++) {
        for (int n = 0; n < CASES; n++) {
            int i = (n + round) % CASES;
            struct timespec from, to;
            memset(target, 0, sizeof target);
            clock_gettime(CLOCK_MONOTONIC, &from);
            cases[i].copy();
            clock_gettime(CLOCK_MONOTONIC, &to);
            if (memcmp(target + cases[i].at, source + cases[i].at, 8 * PLACES)) {
                fprintf(stderr, "%s copies something else\n", cases[i].name);
                return 1;
            }
            double ns = 1e9 * (to.tv_sec - from.tv_sec) + (to.tv_nsec - from.tv_nsec);
            if (round)
                printf("%s %.4f\n", cases[i].name, ns / (LOOPS * PLACES));
        }
    }
    return 0;
}
