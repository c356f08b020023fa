/* Counters and histograms, by every kind of user: threads, signal handlers, forked children. C11 and C++11. */
#include <dormouse/percpu.h>

#include "without.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ROUNDS 200000

static struct dormouse_percpu_counter *counter;
static struct dormouse_percpu_histogram *histogram;
static volatile sig_atomic_t handled;

static int64_t distance(int64_t a, int64_t b)
{
    return a < b ? b - a : a - b;
}

static void *work(void *argument)
{
    int64_t step = (int64_t)(intptr_t)argument;
    for (int64_t round = 0; round < ROUNDS; round++) {
        dormouse_percpu_counter_add(counter, round % 3 == 0 ? -step : step);
        dormouse_percpu_histogram_record(histogram, (uint64_t)round);
    }
    return NULL;
}

static int64_t worth(int64_t step)
{
    int64_t down = (ROUNDS + 2) / 3;
    return step * (ROUNDS - 2 * down);
}

static void handler(int signal)
{
    (void)signal;
    handled = handled + 1;
    dormouse_percpu_counter_add(counter, 1);
    dormouse_percpu_histogram_record(histogram, UINT64_MAX);
}

static void check_arguments(void)
{
    const uint64_t thresholds[] = { 0, (uint64_t)INT64_MAX + 1, UINT64_MAX };
    for (size_t index = 0; index < sizeof thresholds / sizeof *thresholds; index++) {
        errno = 0;
        assert(dormouse_percpu_counter_create(thresholds[index]) == NULL && errno == EINVAL);
    }
    errno = 0;
    assert(dormouse_percpu_histogram_create(DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX + 1) == NULL && errno == EINVAL);
    errno = 0;
    assert(dormouse_percpu_histogram_create(UINT32_MAX) == NULL && errno == EINVAL);
    dormouse_percpu_counter_destroy(NULL);
    dormouse_percpu_histogram_destroy(NULL);

    struct dormouse_percpu_counter *coarse = dormouse_percpu_counter_create((uint64_t)INT64_MAX);
    assert(coarse != NULL);
    errno = 7;
    dormouse_percpu_counter_add(coarse, INT64_MAX);
    dormouse_percpu_counter_add(coarse, 1);
    assert(dormouse_percpu_counter_sum(coarse) == INT64_MIN);
    dormouse_percpu_counter_add(coarse, INT64_MIN);
    assert(dormouse_percpu_counter_sum(coarse) == 0);
    assert(dormouse_percpu_counter_error_max(coarse, 1) == UINT64_MAX);
    dormouse_percpu_counter_destroy(coarse);

    struct dormouse_percpu_histogram *empty = dormouse_percpu_histogram_create(DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX);
    assert(empty != NULL);
    uint64_t value = 3;
    assert(dormouse_percpu_histogram_quantile(empty, 0.5, &value) == -ENODATA && value == 3);
    assert(dormouse_percpu_histogram_snapshot(empty, NULL, 0) == 0);
    assert(dormouse_percpu_histogram_snapshot(empty, NULL, 1) == -EINVAL);
    dormouse_percpu_histogram_record(empty, 9);
    const double wrong[] = { -0.01, 1.01, (double)NAN, (double)INFINITY };
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++)
        assert(dormouse_percpu_histogram_quantile(empty, wrong[index], &value) == -EINVAL && value == 3);
    assert(dormouse_percpu_histogram_quantile(empty, 0.5, NULL) == -EINVAL);
    assert(dormouse_percpu_histogram_quantile(empty, 0.0, &value) == 0 && value == 9);
    dormouse_percpu_histogram_destroy(empty);
    assert(errno == 7 && "nothing but creation changes errno");
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Compares quantiles and buckets with the sorted values. */
static void check_quantiles(unsigned bits)
{
    enum { COUNT = 5000 };
    static uint64_t values[COUNT];
    struct dormouse_percpu_histogram *some = dormouse_percpu_histogram_create(bits);
    assert(some != NULL);
    uint64_t state = 88172645463325252u;
    for (int index = 0; index < COUNT; index++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        values[index] = index == 0 ? 0 : index == 1 ? UINT64_MAX : state >> (state & 63);
        dormouse_percpu_histogram_record(some, values[index]);
    }
    qsort(values, COUNT, sizeof *values, compare);
    assert(dormouse_percpu_histogram_count(some) == COUNT);
    for (int percent = 0; percent <= 100; percent++) {
        int rank = (COUNT * percent + 99) / 100;
        uint64_t exact = values[rank > 0 ? rank - 1 : 0], found = 0;
        assert(dormouse_percpu_histogram_quantile(some, percent / 100.0, &found) == 0);
        assert(found >= exact && (double)(found - exact) <= ldexp((double)exact, -(int)bits));
    }

    size_t bucket_count = dormouse_percpu_histogram_bucket_count(some);
    assert(bucket_count == (size_t)(65 - bits) << bits);
    struct dormouse_percpu_bucket *buckets =
        (struct dormouse_percpu_bucket *)calloc(bucket_count, sizeof(struct dormouse_percpu_bucket));
    ptrdiff_t len = dormouse_percpu_histogram_snapshot(some, buckets, bucket_count);
    assert(len > 0 && (size_t)len <= bucket_count);
    size_t next = 0;
    for (ptrdiff_t index = 0; index < len; index++) {
        assert(buckets[index].count > 0 && (index == 0 || buckets[index].low > buckets[index - 1].high));
        for (uint64_t count = 0; count < buckets[index].count; count++, next++)
            assert(next < COUNT && values[next] >= buckets[index].low && values[next] <= buckets[index].high);
    }
    assert(next == COUNT && buckets[0].low == 0 && buckets[len - 1].high == UINT64_MAX);

    /* If there is too little room, all of it is used, and no more; the result is the number of buckets needed. */
    memset(buckets, 0xA5, bucket_count * sizeof *buckets);
    assert(dormouse_percpu_histogram_snapshot(some, buckets, 2) == len);
    assert(buckets[1].count > 0 && buckets[2].count == 0xA5A5A5A5A5A5A5A5u);
    assert(dormouse_percpu_histogram_snapshot(some, NULL, 0) == len);
    free(buckets);
    dormouse_percpu_histogram_destroy(some);
}

static void check_threads(void)
{
    pthread_t threads[THREADS];
    int64_t expected = 0;
    for (intptr_t index = 0; index < THREADS; index++) {
        assert(pthread_create(&threads[index], NULL, work, (void *)(index + 1)) == 0);
        expected += worth(index + 1);
    }
    for (int index = 0; index < THREADS; index++)
        assert(pthread_join(threads[index], NULL) == 0);
    assert(dormouse_percpu_counter_sum(counter) == expected);
    int64_t error = distance(dormouse_percpu_counter_approximate(counter), expected);
    assert((uint64_t)error <= dormouse_percpu_counter_error_max(counter, THREADS));
    assert(dormouse_percpu_histogram_count(histogram) == (uint64_t)THREADS * ROUNDS);
    uint64_t median = 0;
    assert(dormouse_percpu_histogram_quantile(histogram, 0.5, &median) == 0);
    assert(median >= ROUNDS / 2 - 1 && median <= ROUNDS / 2 + ROUNDS / 64);
}

static void check_signals(void)
{
    int64_t before = dormouse_percpu_counter_sum(counter);
    uint64_t count_before = dormouse_percpu_histogram_count(histogram);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    assert(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every;
    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = every.it_value.tv_usec = 50;
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    int64_t rounds = 0;
    while (handled < 200) {
        work((void *)1);
        rounds++;
    }
    memset(&every, 0, sizeof every);
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    /* One more signal may arrive: it is counted by both or by neither, before it is ignored. */
    assert(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    assert(dormouse_percpu_counter_sum(counter) == before + rounds * worth(1) + handled);
    assert(dormouse_percpu_histogram_count(histogram) == count_before + (uint64_t)(rounds * ROUNDS) + (uint64_t)handled);
}

static void check_fork(void)
{
    int64_t before = dormouse_percpu_counter_sum(counter);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        work((void *)2);
        _exit(dormouse_percpu_counter_sum(counter) == before + worth(2) ? 0 : 1);
    }
    work((void *)1);
    int status = 0;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert(dormouse_percpu_counter_sum(counter) == before + worth(1));
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "without") == 0)
        without_rseq(argv[0]);
    check_arguments();
    for (unsigned bits = 0; bits <= 9; bits += 3)
        check_quantiles(bits);
    counter = dormouse_percpu_counter_create(64);
    histogram = dormouse_percpu_histogram_create(5);
    assert(counter != NULL && histogram != NULL);
    check_threads();
    check_signals();
    check_fork();
    dormouse_percpu_counter_destroy(counter);
    dormouse_percpu_histogram_destroy(histogram);
    /* Destruction frees the memory: otherwise the loop would need many times the address space. */
    for (int round = 0; round < 3000; round++) {
        histogram = dormouse_percpu_histogram_create(DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX);
        assert(histogram != NULL);
        dormouse_percpu_histogram_destroy(histogram);
    }
    puts("fine");
    return 0;
}
