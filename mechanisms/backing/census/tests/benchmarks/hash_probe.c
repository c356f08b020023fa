/*
 * Looks up keys that are not in a hash table with open addressing, whose slots calloc() has given: an empty slot is a zero, so
 * each look-up reads one slot of a table in which nothing was ever stored.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOKUPS = 2000000 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    size_t count = (size_t)(argc > 1 ? atol(argv[1]) : 64) << 17;
    uint64_t *slots = calloc(count, sizeof *slots), key = 1;
    long found = 0;
    double start = seconds();
    for (int lookup = 0; lookup < LOOKUPS; lookup++) {
        key = key * 6364136223846793005u + 1442695040888963407u;
        size_t slot = (size_t)(key >> 17) & (count - 1);
        while (slots[slot] != 0 && slots[slot] != key)
            slot = (slot + 1) & (count - 1);
        found += slots[slot] == key;
    }
    printf("%.1f ns a look-up, %ld found\n", (seconds() - start) * 1e9 / LOOKUPS, found);
    free(slots);
    return 0;
}
