/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counters and histograms with words on each CPU, for C11 and C++11 (gcc and clang).
 *
 *     struct dormouse_percpu_counter *pages = dormouse_percpu_counter_create(64);
 *     dormouse_percpu_counter_add(pages, 3);                     no locked instruction, no shared cache line
 *     if (dormouse_percpu_counter_approximate(pages) > limit)    one load
 *         if (dormouse_percpu_counter_sum(pages) > limit)        exact, one step for each CPU
 *             ...
 *
 *     struct dormouse_percpu_histogram *latency_ns = dormouse_percpu_histogram_create(5);
 *     dormouse_percpu_histogram_record(latency_ns, now_ns() - begin_ns);
 *     dormouse_percpu_histogram_quantile(latency_ns, 0.99, &p99_ns);
 *
 * An addition is one restartable sequence (rseq) on the CPU that the thread is on. Where the C library has not registered rseq for
 * the thread, under valgrind for instance, it is an atomic addition. Memory is private, mapped by the library for all CPUs that
 * there may be, and never from malloc. What fork() copies is a counter or histogram of the child's own from then on. Do not use them
 * between vfork() and exec: the kernel does not restart the sequences of such a child.
 *
 * Unless NULL is said to be allowed, pointers are to what a create function returned and nobody has destroyed. Only the
 * create functions change errno.
 *
 * Link with -ldormouse; see dormouse-percpu(3).
 */
#ifndef DORMOUSE_PERCPU_H
#define DORMOUSE_PERCPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_percpu_counter;
struct dormouse_percpu_histogram;

/* Most bits of sub-buckets that a histogram may have. */
#define DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX 16

/* A bucket that is not empty: so many values from `low` to `high`, both included. */
struct dormouse_percpu_bucket {
    uint64_t low;
    uint64_t high;
    uint64_t count;
};

/*
 * A signed counter at 0. What a CPU has counted for itself and is not in the approximation stays below `threshold`, which is in the
 * counter's unit, from 1 to INT64_MAX.
 *
 * NULL with errno: EINVAL  the threshold is not in that range
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_counter *dormouse_percpu_counter_create(uint64_t threshold);

/*
 * Adds `n`, which may be negative. The value wraps modulo 2^64. As much as the threshold at once, or more, is added to words that
 * all CPUs share.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
void dormouse_percpu_counter_add(struct dormouse_percpu_counter *counter, int64_t n);

/*
 * About the value: one load. Unless a thread is interrupted inside dormouse_percpu_counter_add() by another addition on the same CPU,
 * it is off by less than the threshold for each CPU, and otherwise by dormouse_percpu_counter_error_max() at most.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_approximate(const struct dormouse_percpu_counter *counter);

/*
 * The value: exact for additions that happened before the call. Of those that run meanwhile, each is in it or not.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_sum(const struct dormouse_percpu_counter *counter);

/*
 * How far the approximation may be off while `adders` threads, or signal handlers, add at the same time at most; UINT64_MAX if that
 * is not less. Additions of a threshold or more that are on their way come on top.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_counter_error_max(const struct dormouse_percpu_counter *counter, uint64_t adders);

/* Ends a counter that nobody uses any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_counter_destroy(struct dormouse_percpu_counter *counter);

/*
 * An empty histogram of all 64-bit values with 2^sub_bucket_bits buckets for each power of two. A bucket is 2^-sub_bucket_bits of its
 * least value wide at most; values below 2^(sub_bucket_bits + 1) have buckets for themselves. It takes up to 16 bytes for each bucket
 * and CPU, of which those are in use that values have gone to: 5 bits are 1,920 buckets, and an error of 3.1 %.
 *
 * NULL with errno: EINVAL  more than DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX bits
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_histogram *dormouse_percpu_histogram_create(unsigned sub_bucket_bits);

/* Counts `value`. MT-safe, wait-free, async-signal-safe. */
void dormouse_percpu_histogram_record(struct dormouse_percpu_histogram *histogram, uint64_t value);

/*
 * How many values were recorded, modulo 2^64: exact for those before the call.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_histogram_count(const struct dormouse_percpu_histogram *histogram);

/* Buckets, empty ones too: more there cannot be in a snapshot. MT-safe, wait-free, async-signal-safe. */
size_t dormouse_percpu_histogram_bucket_count(const struct dormouse_percpu_histogram *histogram);

/*
 * Stores in `value` the greatest value of the bucket with the `q`-quantile, the value of rank max(1, ceil(q * count)) from below. The
 * quantile itself is that or less, by the buckets' relative error at most. Of what is recorded meanwhile, some may be in it.
 *
 * 0, or: -EINVAL   `q` is not in 0 to 1, or `value` is NULL
 *        -ENODATA  nothing was recorded
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_histogram_quantile(const struct dormouse_percpu_histogram *histogram, double q, uint64_t *value);

/*
 * Stores the buckets that are not empty, from below, `capacity` of them at most, and returns how many there are: if that is more than
 * `capacity`, the rest is left out. `buckets` may be NULL if `capacity` is 0. What was recorded before the call is in it.
 *
 * Errors: -EINVAL  `buckets` is NULL, `capacity` is not 0
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_histogram_snapshot(const struct dormouse_percpu_histogram *histogram,
                                             struct dormouse_percpu_bucket *buckets, size_t capacity);

/* Ends a histogram that nobody uses any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_histogram_destroy(struct dormouse_percpu_histogram *histogram);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
