/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Counters, histograms, and pools of objects of which every CPU has a copy, for C11 and C++11 (gcc and clang).
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
 *     struct stats { uint64_t hits; struct dormouse_percpu_list free_buffers; };
 *     struct dormouse_percpu_pool *pool = dormouse_percpu_pool_create(NULL, NULL);
 *     dormouse_percpu_pool_alloc(pool, sizeof(struct stats), alignof(struct stats), &stats, NULL);
 *     dormouse_percpu_add(pool, stats, offsetof(struct stats, hits), 1);
 *     buffer = dormouse_percpu_list_pop(pool, stats, offsetof(struct stats, free_buffers));
 *
 * An addition is one restartable sequence (rseq) on the CPU that the thread runs on. If no rseq is registered
 * for the thread, for example under valgrind, it is an atomic addition. Memory is private, mapped by the library for all CPUs
 * that may ever be online, and never from malloc. A child of fork() has its own copy of counters, histograms and pools.
 * Do not use them between vfork() and exec: the kernel does not restart the sequences of such a child.
 *
 * Pointers must be to what a create function returned and nobody has destroyed, unless NULL is said to be allowed. Only the
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

/* A bucket that is not empty: `count` values from `low` to `high`, both included. */
struct dormouse_percpu_bucket {
    uint64_t low;
    uint64_t high;
    uint64_t count;
};

/*
 * A signed counter at 0. What a CPU has counted for itself and is not in the approximation stays below `threshold`, which is in
 * the counter's unit, from 1 to INT64_MAX.
 *
 * NULL with errno: EINVAL  the threshold is not in that range
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_counter *dormouse_percpu_counter_create(uint64_t threshold);

/*
 * Adds `n`, which may be negative. The value wraps modulo 2^64. An addition of the threshold or more goes to words
 * that all CPUs share.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
void dormouse_percpu_counter_add(struct dormouse_percpu_counter *counter, int64_t n);

/*
 * Approximately the value, by one load. It is off by less than the threshold for each CPU, or, if a thread was interrupted inside
 * dormouse_percpu_counter_add() by another addition on the same CPU, by at most dormouse_percpu_counter_error_max().
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_approximate(const struct dormouse_percpu_counter *counter);

/*
 * The value. It contains every addition that happened before the call; one that runs at the same time may be in it or not.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_sum(const struct dormouse_percpu_counter *counter);

/*
 * How far the approximation may be off while at most `adders` threads or signal handlers add at the same time; at most
 * UINT64_MAX. Unfinished additions of a threshold or more come on top.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_counter_error_max(const struct dormouse_percpu_counter *counter, uint64_t adders);

/* Destroys a counter that nobody uses any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_counter_destroy(struct dormouse_percpu_counter *counter);

/*
 * An empty histogram of all 64-bit values with 2^sub_bucket_bits buckets for each power of two. A bucket is 2^-sub_bucket_bits
 * of its least value wide at most; values below 2^(sub_bucket_bits + 1) have buckets for themselves. It takes up to 16 bytes
 * for each bucket and CPU, of which those are in use that values have gone to: 5 bits are 1,920 buckets, and an error of 3.1 %.
 *
 * NULL with errno: EINVAL  more than DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX bits
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_histogram *dormouse_percpu_histogram_create(unsigned sub_bucket_bits);

/* Counts `value`. MT-safe, wait-free, async-signal-safe. */
void dormouse_percpu_histogram_record(struct dormouse_percpu_histogram *histogram, uint64_t value);

/*
 * How many values were recorded, modulo 2^64: it contains every value that was recorded before the call.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_histogram_count(const struct dormouse_percpu_histogram *histogram);

/* Buckets, including empty ones: a snapshot cannot have more. MT-safe, wait-free, async-signal-safe. */
size_t dormouse_percpu_histogram_bucket_count(const struct dormouse_percpu_histogram *histogram);

/*
 * Stores in `value` the greatest value of the bucket with the `q`-quantile, the value of rank max(1, ceil(q * count)) from
 * below. The quantile itself is at most this value, and less by at most the buckets' relative error. Some of the values that are
 * recorded at the same time may be in it.
 *
 * 0, or: -EINVAL   `q` is not in 0 to 1, or `value` is NULL
 *        -ENODATA  nothing was recorded
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_histogram_quantile(const struct dormouse_percpu_histogram *histogram, double q, uint64_t *value);

/*
 * Stores the buckets that are not empty, from below, at most `capacity` of them, and returns how many there are. `buckets` may be NULL
 * if `capacity` is 0. The snapshot contains every value that was recorded before the
 * call.
 *
 * Errors: -EINVAL  `buckets` is NULL, `capacity` is not 0
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_histogram_snapshot(const struct dormouse_percpu_histogram *histogram,
                                             struct dormouse_percpu_bucket *buckets, size_t capacity);

/* Destroys a histogram that nobody uses any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_histogram_destroy(struct dormouse_percpu_histogram *histogram);

/*
 * Pools: objects of which every CPU has a copy, allocated and freed while the program runs.
 */

struct dormouse_percpu_pool;

/* Handle of an object: the address of its copy for CPU 0. A handle of zeroes is no object. */
struct dormouse_percpu_object {
    void *word;
};

/* Flag of a pool: freed bytes are poisoned, objects have red zones behind them, and both are checked. */
#define DORMOUSE_PERCPU_ROBUST 1u
/* Flag of a pool: memory is not touched before it is used, so that CPUs that never run cost none. */
#define DORMOUSE_PERCPU_LAZY 2u

/* How a pool is made. Zeroes are the defaults. */
struct dormouse_percpu_pool_options {
    unsigned flags;      /* DORMOUSE_PERCPU_ROBUST, DORMOUSE_PERCPU_LAZY */
    uint32_t cpu_count;  /* copies of each object; default: CPUs that there may be */
    size_t stride_bytes; /* of a chunk, for each CPU: a power of two, at least a page; default: 64 KiB */
    size_t limit_bytes;  /* the most memory for objects, all CPUs together; default: none */
};

/* Why something failed. Each cause belongs to one errno. */
enum dormouse_percpu_cause {
    DORMOUSE_PERCPU_TOO_BIG = 1,       /* E2BIG    no object of the pool can be so large */
    DORMOUSE_PERCPU_BAD_ALIGNMENT = 2, /* EINVAL   no object of the pool can be aligned so, or it is not a power of two */
    DORMOUSE_PERCPU_FIXED = 3,         /* ENOSPC   no room is left; the memory is the caller's */
    DORMOUSE_PERCPU_LIMIT = 4,         /* ENOSPC   no room is left; more memory would pass limit_bytes */
    DORMOUSE_PERCPU_CHUNK_COUNT = 5,   /* ENOSPC   no room is left, and there are as many chunks as there can be */
    DORMOUSE_PERCPU_REFUSED = 6,       /* ENOMEM   the system refuses memory */
    DORMOUSE_PERCPU_CORRUPTED = 7,     /* EUCLEAN  bytes that nobody has a right to change were changed */
    DORMOUSE_PERCPU_BAD_OPTION = 8,    /* EINVAL   an option or argument is not in its range */
    DORMOUSE_PERCPU_REENTERED = 9,     /* EDEADLK  this signal handler has interrupted its own thread inside the pool */
    DORMOUSE_PERCPU_DOUBLE_FREE = 10,  /* EALREADY the object has been freed before */
    DORMOUSE_PERCPU_FOREIGN = 11,      /* ENOENT   no object of this pool is there: it is another pool's, or none */
    DORMOUSE_PERCPU_ATTACHED = 12,     /* EPERM    the pool is attached: whoever created it allocates and frees */
    DORMOUSE_PERCPU_OTHER = 13         /* a cause that this header does not know yet */
};

/* What a function that failed stores, if it is given a place: the errno, the cause, and a line of text with the numbers. */
struct dormouse_percpu_error {
    int error;
    uint32_t cause; /* of enum dormouse_percpu_cause */
    char text[248];
};

/* Allocated objects of one size. */
struct dormouse_percpu_leak {
    size_t size_bytes; /* of each copy, as asked for */
    size_t count;
};

/* What a pool contains, and what it can allocate. */
struct dormouse_percpu_usage {
    size_t object_count;    /* objects that live */
    size_t object_bytes;    /* their sizes as asked for, for one CPU */
    size_t chunk_count;
    size_t mapped_bytes;    /* memory for objects, all CPUs together */
    size_t withdrawn_bytes; /* of that, what was found corrupted and is given to nobody */
    size_t size_bytes_max;  /* the largest object that the pool gives: 4,096 or less */
    size_t align_bytes_max; /* the largest alignment that the pool gives: 4,096 or less */
};

/*
 * An empty pool in private memory, which grows by chunks as far as the options and the system allow. NULL for `options`: the
 * defaults. NULL for `error` is allowed here and below; if a function succeeds, nothing is stored there.
 *
 * NULL with errno by the causes BAD_OPTION, LIMIT, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_create(const struct dormouse_percpu_pool_options *options,
                                                         struct dormouse_percpu_error *error);

/*
 * The same in the caller's memory, which other processes may also map: in its first cpu_count * stride_bytes bytes.
 * It must be aligned to 8 bytes; it does not grow; its contents are overwritten as objects are allocated. It must stay mapped
 * until the pool is destroyed, which leaves it unchanged.
 *
 * NULL with errno by the causes BAD_OPTION, LIMIT, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_create_in_region(void *base, size_t size_bytes,
                                                                   const struct dormouse_percpu_pool_options *options,
                                                                   struct dormouse_percpu_error *error);

/*
 * A pool that another process (or another pool of this one) has created in that memory, at any address here.
 * The options must be those that it was created with. An attached pool does not allocate or free: it gets objects by their
 * offsets.
 *
 * NULL with errno by the causes BAD_OPTION, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_attach(void *base, size_t size_bytes,
                                                         const struct dormouse_percpu_pool_options *options,
                                                         struct dormouse_percpu_error *error);

/* Destroys a pool and its objects, which nobody uses any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_pool_destroy(struct dormouse_percpu_pool *pool);

/*
 * Stores in `object` a new object of so many bytes for every CPU, zeroed on all of them.
 *
 * 0, or a negative errno by the causes TOO_BIG, BAD_ALIGNMENT, FIXED, LIMIT, CHUNK_COUNT, REFUSED, CORRUPTED (that
 * memory is never allocated again; try again), BAD_OPTION (`object` is NULL), REENTERED, ATTACHED.
 * MT-safe, blocking, not async-signal-safe; never calls malloc.
 */
int dormouse_percpu_pool_alloc(struct dormouse_percpu_pool *pool, size_t size_bytes, size_t align_bytes,
                               struct dormouse_percpu_object *object, struct dormouse_percpu_error *error);

/*
 * Frees an object that nobody uses any more. A second free is recognised until the place is given to another object.
 *
 * 0, or a negative errno by the causes DOUBLE_FREE, FOREIGN, CORRUPTED (its bytes are never allocated again), REENTERED, ATTACHED.
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_percpu_pool_free(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                              struct dormouse_percpu_error *error);

/*
 * The address of the copy for `cpu` of an allocated object; NULL for a CPU that the pool does not have. Words that the operations below
 * change must be read by atomic loads, and must not be written.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
void *dormouse_percpu_pool_address(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, uint32_t cpu);

/* Copies of each object: CPUs from 0 on. MT-safe, wait-free, async-signal-safe. */
uint32_t dormouse_percpu_pool_cpu_count(const struct dormouse_percpu_pool *pool);

/*
 * The size in bytes with which the object was allocated.
 *
 * Errors: -ENOENT  it is not allocated in this pool
 *         -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_size_of(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object);

/*
 * The offset of the object in the pool's memory, for processes that have attached to it.
 *
 * Errors: -ENOENT   it is not allocated in this pool
 *         -ENOTSUP  the pool grows: its memory is not of one piece
 *         -EPERM    the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_offset_of(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object);

/*
 * Stores in `object` the object at that offset. An attached pool does not check that an object is allocated there.
 *
 * 0, or: -ENOENT  no object is allocated there, or it lies outside the pool's memory, or the pool grows
 *        -EINVAL  `object` is NULL
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_pool_object_at(const struct dormouse_percpu_pool *pool, size_t offset,
                                   struct dormouse_percpu_object *object);

/*
 * Checks red zones and free bytes of a robust pool. It withdraws nothing.
 *
 * 0, or a negative errno by the causes CORRUPTED (the text has the first wrong byte), REENTERED, ATTACHED.
 * MT-safe, blocking (nobody allocates or frees meanwhile), not async-signal-safe.
 */
int dormouse_percpu_pool_audit(struct dormouse_percpu_pool *pool, struct dormouse_percpu_error *error);

/*
 * Stores what the pool contains and can allocate; each number is read by itself.
 *
 * 0, or: -EINVAL  `usage` is NULL
 *        -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_pool_usage(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_usage *usage);

/*
 * Stores how many objects of each size are allocated, smallest size first, at most `capacity` sizes, and returns how many sizes there are.
 * Just before the pool is destroyed, these were never freed. `leaks` may be NULL if `capacity` is 0.
 *
 * Errors: -EINVAL  `leaks` is NULL, `capacity` is not 0
 *         -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_leaks(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_leak *leaks,
                                     size_t capacity);

/*
 * Calls work(argument) while no thread is inside the functions that allocate and free. If it calls fork(), the child finds the pool in a
 * consistent state.
 *
 * 0, or: -EDEADLK  the calling thread is inside the pool already
 *        -EINVAL   `work` is NULL
 *        -EPERM    the pool is attached
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_percpu_pool_hold(struct dormouse_percpu_pool *pool, void (*work)(void *argument), void *argument);

/*
 * Operations on the copy of the CPU that the thread is on. The object is allocated; offsets are bytes from the start of a copy; words
 * have eight bytes, are aligned to eight bytes, lie inside the object, and are written by nothing but these operations.
 *
 * Each happens completely or not at all, as seen by threads and handlers on the same CPU; a thread that is interrupted starts over. When they
 * return, the thread may be on another CPU. A store is a release for readers on other CPUs, who load the word with acquire.
 *
 * 0, or: -ERANGE   the thread is on a CPU that the pool does not have (cpu_count was chosen too small)
 *        -EINVAL   an offset is not a multiple of 8, the object is none, or a pointer is NULL
 *        -ENOTSUP  there are no restartable sequences: in a process without them, over memory that others may share; or, where
 *                  the C library does not register threads, in one that is ending or that another library has registered
 * MT-safe, lock-free, async-signal-safe. In a process without restartable sequences: blocking, by a lock of the CPU.
 */

/* Stores the word at `offset` in `value`. */
int dormouse_percpu_load(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                         uint64_t *value);

/* Adds `n` to the word at `offset`, modulo 2^64. */
int dormouse_percpu_add(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset, uint64_t n);

/* Stores `value` in the word at `offset`. */
int dormouse_percpu_store(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                          uint64_t value);

/* Stores `value` in the word at `offset` if it holds `expected`; 1 if it holds something else. */
int dormouse_percpu_compare_and_store(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                                      uint64_t expected, uint64_t value);

/*
 * If the word at `guard_offset` holds `expected`, `size_bytes` bytes are copied from `from` to `to_offset`, and then `value` is stored in
 * the word at `last_offset`.
 */
struct dormouse_percpu_copy {
    size_t guard_offset;
    uint64_t expected;
    size_t to_offset;
    const void *from;
    size_t size_bytes;
    size_t last_offset;
    uint64_t value;
};

/*
 * A guarded copy that its last store publishes; 1 if the guard holds another value. An attempt that was interrupted may have
 * copied bytes: copy to where nobody looks before the last store. Keep the copy short, because a thread that is interrupted copies from the
 * beginning.
 */
int dormouse_percpu_copy_and_store(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                                   const struct dormouse_percpu_copy *copy);

/* The link of an object that can be on a list, usually its first field. A node of zeroes is on no list. */
struct dormouse_percpu_node {
    void *next; /* the list's */
};

/* A list's part on each CPU: a field of an object, at a multiple of 8. A list of zeroes is empty. */
struct dormouse_percpu_list {
    void *heads[2];    /* the list's */
    uint64_t popping;  /* the list's */
};

/*
 * Lists of nodes, one on each CPU: last in, first out. They need no restartable sequences: without them, atomic instructions work on
 * a head of their own. In memory that processes share, nodes must lie at the same address in each.
 *
 * MT-safe, lock-free, async-signal-safe.
 */

/* Puts `node`, which belongs to the caller and is on no list, on the list of the CPU that the thread is on. */
void dormouse_percpu_list_push(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                               struct dormouse_percpu_node *node);

/*
 * Takes a node off the list of the CPU that the thread is on. The caller may change it, free it, or push it again immediately. NULL: this
 * CPU's list is empty; lists of other CPUs may not be.
 */
struct dormouse_percpu_node *dormouse_percpu_list_pop(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                                                      size_t offset);

/*
 * Takes all nodes off the lists of all CPUs, and calls take(node, argument) with each, which must not push it on the same list.
 * Nobody else may use the list during the call. Not async-signal-safe unless `take` is.
 */
void dormouse_percpu_list_drain(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                                void (*take)(struct dormouse_percpu_node *node, void *argument), void *argument);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
