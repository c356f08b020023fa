/*
 * Measures reading as lmbench's `bw_mem SIZE rd` is described: the time to read memory and sum up every fourth word of 4 bytes,
 * unrolled. lmbench clears its memory first; this program maps memory and reads it at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int read_all(const int *words, size_t count)
{
    int sum = 0;
    for (const int *word = words; word + 32 <= words + count; word += 32)
        sum += word[0] + word[4] + word[8] + word[12] + word[16] + word[20] + word[24] + word[28];
    return sum;
}

int main(int argc, char **argv)
{
    size_t size = (size_t)(argc > 1 ? atol(argv[1]) : 64) << 20;
    int *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED)
        return 1;
    volatile int result = read_all(words, size / sizeof *words);
    double start = seconds();
    int passes = 0;
    do {
        result += read_all(words, size / sizeof *words);
        passes++;
    } while (seconds() - start < 0.05);
    printf("%.2f %.2f\n", (double)size / 1e6, (double)size * passes / (seconds() - start) / 1e6);
    return 0;
}
