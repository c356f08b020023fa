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
 * An addition is one restartable sequence (rseq) on the CPU that the thread runs on. If no rseq is registered for the
 * thread, for example under valgrind, it is an atomic addition. Memory is private, mapped by the library for all CPUs
 * that may ever be online, and never from malloc. A child of fork() has its own copy of counters, histograms and pools.
 * Do not use them between vfork() and exec: the kernel does not restart the sequences of such a child.
 *
 * Pointers must be ones that a create function returned and that were not destroyed, unless NULL is said to be allowed.
 * Only the create functions change errno.
 *
 * Link with -ldormouse_percpu or -ldormouse; see dormouse-percpu(3). <dormouse/this_cpu.h> has variables, and operations
 * that are inline.
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

/* Maximum number of bits for sub-buckets of a histogram. */
#define DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX 16

/* A bucket that is not empty: `count` values from `low` to `high`, both included. */
struct dormouse_percpu_bucket {
    uint64_t low;
    uint64_t high;
    uint64_t count;
};

/*
 * Creates a signed counter at 0. The amount that a CPU has counted and that is not in the approximation stays below
 * `threshold`, which is in the counter's unit, from 1 to INT64_MAX.
 *
 * NULL with errno: EINVAL  the threshold is not in that range
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_counter *dormouse_percpu_counter_create(uint64_t threshold);

/*
 * Adds `n`, which may be negative. The value wraps modulo 2^64. An addition of the threshold or more is made on words
 * that all CPUs share.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
void dormouse_percpu_counter_add(struct dormouse_percpu_counter *counter, int64_t n);

/*
 * Returns approximately the value, by one load. It is off by less than the threshold for each CPU, or, if a thread was
 * interrupted inside dormouse_percpu_counter_add() by another addition on the same CPU, by at most
 * dormouse_percpu_counter_error_max().
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_approximate(const struct dormouse_percpu_counter *counter);

/*
 * Returns the value. It contains every addition that happened before the call; one that runs at the same time may be
 * included or not.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
int64_t dormouse_percpu_counter_sum(const struct dormouse_percpu_counter *counter);

/*
 * Returns the maximum error of the approximation while at most `adders` threads or signal handlers add at the same
 * time; at most UINT64_MAX. Each unfinished addition of a threshold or more adds its own amount.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_counter_error_max(const struct dormouse_percpu_counter *counter, uint64_t adders);

/* Destroys a counter that is not used any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_counter_destroy(struct dormouse_percpu_counter *counter);

/*
 * Creates an empty histogram of all 64-bit values with 2^sub_bucket_bits buckets for each power of two. The width of a
 * bucket is at most 2^-sub_bucket_bits of its least value; values below 2^(sub_bucket_bits + 1) have buckets of their
 * own. It takes up to 16 bytes for each bucket and CPU; only buckets that have counted a value use memory. 5 bits are
 * 1,920 buckets, and an error of 3.1 %.
 *
 * NULL with errno: EINVAL  more than DORMOUSE_PERCPU_SUB_BUCKET_BITS_MAX bits
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_histogram *dormouse_percpu_histogram_create(unsigned sub_bucket_bits);

/* Counts `value`. MT-safe, wait-free, async-signal-safe. */
void dormouse_percpu_histogram_record(struct dormouse_percpu_histogram *histogram, uint64_t value);

/*
 * Returns the number of recorded values, modulo 2^64, including every value that was recorded before the call.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
uint64_t dormouse_percpu_histogram_count(const struct dormouse_percpu_histogram *histogram);

/* Returns the number of buckets, including empty ones: the maximum for a snapshot. MT-safe, wait-free,
 * async-signal-safe. */
size_t dormouse_percpu_histogram_bucket_count(const struct dormouse_percpu_histogram *histogram);

/*
 * Stores in `value` the greatest value of the bucket with the `q`-quantile, the value of rank max(1, ceil(q * count))
 * from below. The quantile itself is at most this value, and less by at most the buckets' relative error. Values that
 * are recorded during the call may be included.
 *
 * 0, or: -EINVAL   `q` is not in 0 to 1, or `value` is NULL
 *        -ENODATA  nothing was recorded
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_histogram_quantile(const struct dormouse_percpu_histogram *histogram, double q, uint64_t *value);

/*
 * Stores the buckets that are not empty, from below, at most `capacity` of them, and returns the number of these
 * buckets. `buckets` may be NULL if `capacity` is 0. The snapshot contains every value that was recorded before the
 * call.
 *
 * Errors: -EINVAL  `buckets` is NULL, `capacity` is not 0
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_histogram_snapshot(const struct dormouse_percpu_histogram *histogram,
                                             struct dormouse_percpu_bucket *buckets, size_t capacity);

/* Destroys a histogram that is not used any more. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_percpu_histogram_destroy(struct dormouse_percpu_histogram *histogram);

/*
 * Pools: objects of which every CPU has a copy, allocated and freed while the program runs.
 */

struct dormouse_percpu_pool;

/* Handle of an object: the address of its copy for CPU 0. A handle of zeroes is not an object. */
struct dormouse_percpu_object {
    void *word;
};

/* Flag of a pool: freed bytes are poisoned, objects have red zones after them, and both are checked. */
#define DORMOUSE_PERCPU_ROBUST 1u
/* Flag of a pool: memory is not touched before it is used, so that CPUs that never run use none. */
#define DORMOUSE_PERCPU_LAZY 2u

/* Options for a pool. Zeroes are the defaults. */
struct dormouse_percpu_pool_options {
    unsigned flags;      /* DORMOUSE_PERCPU_ROBUST, DORMOUSE_PERCPU_LAZY */
    uint32_t cpu_count;  /* number of copies of each object; default: all possible CPUs */
    size_t stride_bytes; /* bytes of a chunk for each CPU: a power of two, at least an os_page; default: 64 KiB */
    size_t limit_bytes;  /* maximum memory for objects, over all CPUs; default: none */
};

/* The cause of a failure. Each cause belongs to one errno. */
enum dormouse_percpu_cause {
    DORMOUSE_PERCPU_TOO_BIG = 1,       /* E2BIG    the object is larger than any object of the pool can be */
    DORMOUSE_PERCPU_BAD_ALIGNMENT = 2, /* EINVAL   the alignment is larger than any of the pool, or not a power of two */
    DORMOUSE_PERCPU_FIXED = 3,         /* ENOSPC   no room is left; the memory is the caller's */
    DORMOUSE_PERCPU_LIMIT = 4,         /* ENOSPC   no room is left; more memory would exceed limit_bytes */
    DORMOUSE_PERCPU_CHUNK_COUNT = 5,   /* ENOSPC   no room is left, and the pool has the maximum number of chunks */
    DORMOUSE_PERCPU_REFUSED = 6,       /* ENOMEM   the system refuses memory */
    DORMOUSE_PERCPU_CORRUPTED = 7,     /* EUCLEAN  free bytes or a red zone were overwritten */
    DORMOUSE_PERCPU_BAD_OPTION = 8,    /* EINVAL   an option or argument is not in its range */
    DORMOUSE_PERCPU_REENTERED = 9,     /* EDEADLK  this signal handler has interrupted its own thread inside the pool */
    DORMOUSE_PERCPU_DOUBLE_FREE = 10,  /* EALREADY the object has been freed before */
    DORMOUSE_PERCPU_FOREIGN = 11,      /* ENOENT   no object of this pool starts there: the handle is not one of its own */
    DORMOUSE_PERCPU_ATTACHED = 12,     /* EPERM    the pool is attached: only the pool created there allocates and frees */
    DORMOUSE_PERCPU_OTHER = 13         /* a cause that this header does not know yet */
};

/* Error of a function that failed, if the caller gives a place for it: the errno, the cause, and a line of text with
 * the numbers. */
struct dormouse_percpu_error {
    int error;
    uint32_t cause; /* a value of enum dormouse_percpu_cause */
    char text[248];
};

/* Number of allocated objects of one size. */
struct dormouse_percpu_leak {
    size_t size_bytes; /* of each copy, as requested */
    size_t count;
};

/* Contents and limits of a pool. */
struct dormouse_percpu_usage {
    size_t object_count;    /* live objects */
    size_t object_bytes;    /* sum of their sizes as requested, for one CPU */
    size_t chunk_count;
    size_t mapped_bytes;    /* memory for objects, over all CPUs */
    size_t withdrawn_bytes; /* memory that was found corrupted and is never allocated again */
    size_t size_bytes_max;  /* maximum size of an object in this pool: 4,096 or less */
    size_t align_bytes_max; /* maximum alignment in this pool: 4,096 or less */
};

/*
 * Creates an empty pool in private memory, which grows by chunks as far as the options and the system allow. NULL for
 * `options` means the defaults. NULL for `error` is allowed here and below; if a function succeeds, nothing is stored
 * there.
 *
 * NULL with errno by the causes BAD_OPTION, LIMIT, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_create(const struct dormouse_percpu_pool_options *options,
                                                         struct dormouse_percpu_error *error);

/*
 * Creates an empty pool in the caller's memory, which other processes may also map: in its first cpu_count *
 * stride_bytes bytes. The memory must be aligned to 8 bytes. The pool does not grow, and allocating objects overwrites
 * the memory. It must stay mapped until the pool is destroyed, which leaves it unchanged.
 *
 * NULL with errno by the causes BAD_OPTION, LIMIT, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_create_in_region(void *base, size_t size_bytes,
                                                                   const struct dormouse_percpu_pool_options *options,
                                                                   struct dormouse_percpu_error *error);

/*
 * Attaches to a pool that another process (or another pool of this one) has created in that memory, which may be mapped
 * at another address here. The options must be those that it was created with. An attached pool does not allocate or
 * free: it gets objects by their offsets.
 *
 * NULL with errno by the causes BAD_OPTION, REFUSED.
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_percpu_pool *dormouse_percpu_pool_attach(void *base, size_t size_bytes,
                                                         const struct dormouse_percpu_pool_options *options,
                                                         struct dormouse_percpu_error *error);

/* Destroys a pool and its objects, which are not used any more. NULL is allowed. MT-safe, blocking, not
 * async-signal-safe. */
void dormouse_percpu_pool_destroy(struct dormouse_percpu_pool *pool);

/*
 * Stores in `object` a new object of `size_bytes` bytes for every CPU, zeroed on all of them.
 *
 * 0, or a negative errno by the causes TOO_BIG, BAD_ALIGNMENT, FIXED, LIMIT, CHUNK_COUNT, REFUSED, CORRUPTED (that
 * memory is never allocated again; try again), BAD_OPTION (`object` is NULL), REENTERED, ATTACHED.
 * MT-safe, blocking, not async-signal-safe; never calls malloc.
 */
int dormouse_percpu_pool_alloc(struct dormouse_percpu_pool *pool, size_t size_bytes, size_t align_bytes,
                               struct dormouse_percpu_object *object, struct dormouse_percpu_error *error);

/*
 * Frees an object that is not used any more. A second free is recognised until the place is given to another object.
 *
 * 0, or a negative errno by the causes DOUBLE_FREE, FOREIGN, CORRUPTED (its bytes are never allocated again), REENTERED, ATTACHED.
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_percpu_pool_free(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                              struct dormouse_percpu_error *error);

/*
 * Returns the address of an allocated object's copy for `cpu`; NULL for a CPU that the pool does not have. Words that
 * the operations below change must be read by atomic loads, and must not be written.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
void *dormouse_percpu_pool_address(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, uint32_t cpu);

/* Returns the number of copies of each object: CPUs from 0 on. MT-safe, wait-free, async-signal-safe. */
uint32_t dormouse_percpu_pool_cpu_count(const struct dormouse_percpu_pool *pool);

/*
 * Returns the size with which the object was allocated, in bytes.
 *
 * Errors: -ENOENT  it is not allocated in this pool
 *         -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_size_of(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object);

/*
 * Returns the offset of the object in the pool's memory, in bytes, for processes that have attached to it.
 *
 * Errors: -ENOENT   it is not allocated in this pool
 *         -ENOTSUP  the pool grows: its memory is not contiguous
 *         -EPERM    the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_offset_of(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object);

/*
 * Stores in `object` the object at that offset. An attached pool does not check that an object is allocated there.
 *
 * 0, or: -ENOENT  no object is allocated there, or the offset is outside the pool's memory, or the pool grows
 *        -EINVAL  `object` is NULL
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_pool_object_at(const struct dormouse_percpu_pool *pool, size_t offset,
                                   struct dormouse_percpu_object *object);

/*
 * Checks red zones and free bytes of a robust pool. It withdraws nothing.
 *
 * 0, or a negative errno by the causes CORRUPTED (the text has the first wrong byte), REENTERED, ATTACHED.
 * MT-safe, blocking (allocation and freeing wait for it), not async-signal-safe.
 */
int dormouse_percpu_pool_audit(struct dormouse_percpu_pool *pool, struct dormouse_percpu_error *error);

/*
 * Stores the contents and limits of the pool; each number is read separately.
 *
 * 0, or: -EINVAL  `usage` is NULL
 *        -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_percpu_pool_usage(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_usage *usage);

/*
 * Stores the number of allocated objects of each size, smallest size first, at most `capacity` sizes, and returns the
 * number of sizes. Just before the pool is destroyed, these objects were never freed. `leaks` may be NULL if `capacity`
 * is 0.
 *
 * Errors: -EINVAL  `leaks` is NULL, `capacity` is not 0
 *         -EPERM   the pool is attached
 * MT-safe, wait-free, async-signal-safe.
 */
ptrdiff_t dormouse_percpu_pool_leaks(const struct dormouse_percpu_pool *pool, struct dormouse_percpu_leak *leaks,
                                     size_t capacity);

/*
 * Calls work(argument) while no thread is inside the functions that allocate and free. If it calls fork(), the child
 * finds the pool in a consistent state.
 *
 * 0, or: -EDEADLK  the calling thread is inside the pool already
 *        -EINVAL   `work` is NULL
 *        -EPERM    the pool is attached
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_percpu_pool_hold(struct dormouse_percpu_pool *pool, void (*work)(void *argument), void *argument);

/*
 * Operations on the copy of the CPU that the thread is on. The object is allocated; offsets are bytes from the start of
 * a copy; words have eight bytes, are aligned to eight bytes, are inside the object, and are written only by these
 * operations.
 *
 * Each happens completely or not at all, as seen by threads and handlers on the same CPU; a thread that is interrupted
 * starts over. When they return, the thread may be on another CPU. A store is a release for readers on other CPUs,
 * which load the word with acquire.
 *
 * 0, or: -ERANGE   the thread is on a CPU that the pool does not have (cpu_count was chosen too small)
 *        -EINVAL   an offset is not a multiple of 8, the handle is zero, or a pointer is NULL
 *        -ENOTSUP  there are no restartable sequences: in a process without them, over memory that others may share; or, if
 *                  the C library does not register threads, in a thread that is ending or that another library has registered
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

/* Stores `value` in the word at `offset` if it holds `expected`; returns 1 if it holds another value. */
int dormouse_percpu_compare_and_store(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                                      uint64_t expected, uint64_t value);

/*
 * Arguments of dormouse_percpu_copy_and_store(): if the word at `guard_offset` holds `expected`, `size_bytes` bytes are
 * copied from `from` to `to_offset`, and then `value` is stored in the word at `last_offset`.
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
 * Copies bytes if the guard has the expected value, and publishes them by its last store; returns 1 if the guard holds
 * another value. An attempt that was interrupted may have copied bytes: copy to a place that no reader reads before the
 * last store. Keep the copy short, because a thread that is interrupted copies from the beginning.
 */
int dormouse_percpu_copy_and_store(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                                   const struct dormouse_percpu_copy *copy);

/* The link of an object that can be on a list, usually its first field. A zeroed node is on no list. */
struct dormouse_percpu_node {
    void *next; /* private */
};

/* A list's part on each CPU: a field of an object, at a multiple of 8. A zeroed list is empty. */
struct dormouse_percpu_list {
    void *heads[2];    /* private */
    uint64_t popping;  /* private */
};

/*
 * Lists of nodes, one on each CPU: last in, first out. They need no restartable sequences: without them, atomic
 * instructions use a separate head. In memory that processes share, a node must have one address in all of them.
 *
 * MT-safe, lock-free, async-signal-safe.
 */

/* Pushes `node`, which belongs to the caller and is on no list, on the list of the CPU that the thread is on. */
void dormouse_percpu_list_push(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                               struct dormouse_percpu_node *node);

/*
 * Pops a node from the list of the CPU that the thread is on. The caller may change it, free it, or push it again
 * immediately. NULL: no node was found; lists of other CPUs may not be empty.
 */
struct dormouse_percpu_node *dormouse_percpu_list_pop(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object,
                                                      size_t offset);

/*
 * Takes all nodes off the lists of all CPUs, and calls take(node, argument) with each; `take` must not push it on this
 * list. No other thread may use the list during the call. Not async-signal-safe unless `take` is.
 */
void dormouse_percpu_list_drain(struct dormouse_percpu_pool *pool, struct dormouse_percpu_object object, size_t offset,
                                void (*take)(struct dormouse_percpu_node *node, void *argument), void *argument);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
