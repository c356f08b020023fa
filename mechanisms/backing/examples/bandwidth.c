/*
 * A small benchmark of reading, which is wrong at first: nothing has written to its array, so that all of it is the one page
 * of zeroes, in the first-level cache. Then the array gets memory, and is read again.
 *
 *     cc -O3 bandwidth.c -o bandwidth $(pkg-config --cflags --libs dormouse-backing)
 *     ./bandwidth [MIB]
 *
 * It prints how fast each read was, and how much of the array was memory.
 */
#include <dormouse/backing.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PASSES = 20 };

static volatile uint64_t result;

static uint64_t sum(const uint64_t *words, size_t count)
{
    /* Eight sums, so that an addition does not wait for the one before. */
    uint64_t sums[8] = { 0 };
    for (size_t index = 0; index + 8 <= count; index += 8)
        for (size_t lane = 0; lane < 8; lane++)
            sums[lane] += words[index + lane];
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void measure(const char *name, const uint64_t *words, size_t count)
{
    result = sum(words, count); /* page faults of first touches are not measured */
    double start = seconds();
    for (int pass = 0; pass < PASSES; pass++)
        result = sum(words, count);
    double gb_per_s = (double)(count * sizeof *words) * PASSES / (seconds() - start) / 1e9;
    struct dormouse_pages_missing missing = { 0 };
    dormouse_pages_check(words, count * sizeof *words, &missing);
    size_t missing_bytes = missing.zero_bytes + missing.unknown_bytes + missing.untouched_bytes;
    printf("%s %.1f GB/s, %zu of %zu bytes are no memory\n", name, gb_per_s, missing_bytes, count * sizeof *words);
}

int main(int argc, char **argv)
{
    size_t count = (argc > 1 ? strtoul(argv[1], NULL, 10) : 64) << 17;
    uint64_t *words = calloc(count, sizeof *words);
    if (words == NULL) {
        perror("bandwidth");
        return 1;
    }
    measure("never written:", words, count);
    if (dormouse_pages_populate(words, count * sizeof *words) != 0) {
        fprintf(stderr, "bandwidth: %s\n", dormouse_backing_why());
        return 1;
    }
    measure("populated:", words, count);
    free(words);
    return 0;
}
