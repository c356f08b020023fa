/*
 * Reads an array and sums it up, as McCalpin's STREAM would if it had a kernel that only reads. STREAM itself writes to its
 * arrays first; this program, like many that were made after it, gets its array from calloc() and does not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { PASSES = 10 };

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    size_t count = (size_t)(argc > 1 ? atol(argv[1]) : 64) << 17;
    double *array = calloc(count, sizeof *array), best = 1e9;
    volatile double result = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = seconds(), sums[8] = { 0 };
        for (size_t index = 0; index + 8 <= count; index += 8)
            for (int lane = 0; lane < 8; lane++)
                sums[lane] += array[index + lane];
        for (int lane = 0; lane < 8; lane++)
            result += sums[lane];
        double duration = seconds() - start;
        best = duration < best ? duration : best;
    }
    printf("Sum: %.1f MB/s\n", (double)count * sizeof *array / best / 1e6);
    free(array);
    return 0;
}
