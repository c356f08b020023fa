/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that is present before it is used, and functions that check a buffer and give it memory: for C11 and C++11 (gcc and clang).
 *
 *     struct dormouse_backing_options options = { 0 };
 *     options.size_bytes = 64 << 20;
 *     options.huge = DORMOUSE_BACKING_HUGE_PREFER;
 *     options.flags = DORMOUSE_BACKING_GUARD | DORMOUSE_BACKING_LOCK;
 *     struct dormouse_backing_pool *pool = dormouse_backing_create(NULL, &options);     NULL: memory of this process only; a name: a memory file
 *     if (!pool)
 *         fprintf(stderr, "%s\n", dormouse_backing_why());
 *
 *     dormouse_pages_populate(samples, sizeof samples);                                 in a benchmark, before it measures
 *     DORMOUSE_ASSERT_BACKED(samples, sizeof samples);
 *
 * The first access to each page of memory that was never written is a page fault. If it is only read, it is the system's one page of
 * zeroes, and a benchmark reads too fast. Shared memory that runs out later is a SIGBUS. This library allocates memory, enters it in the page
 * table and checks it there, and reports a failure at that time. Prefaulting costs as much as the faults would have cost.
 *
 * Functions return 0 or a negative errno unless stated otherwise; only those that create and attach change errno. Pointers must refer to objects
 * that were created or attached and not destroyed; NULL is allowed only where stated. All functions are MT-safe for different pools, may block,
 * and are not async-signal-safe, unless stated otherwise.
 *
 * Link with -ldormouse, or with -ldormouse_backing, which contains nothing else; see dormouse-backing(3).
 */
#ifndef DORMOUSE_BACKING_H
#define DORMOUSE_BACKING_H

#include <stddef.h>

/* Kinds of pages: those that the system's settings give; small ones; the highest possible rung of hugetlb, transparent huge pages and small
   pages; huge ones or an error, with the size rounded up to whole huge pages. */
#define DORMOUSE_BACKING_HUGE_AS_CONFIGURED 0u
#define DORMOUSE_BACKING_HUGE_NEVER 1u
#define DORMOUSE_BACKING_HUGE_PREFER 2u
#define DORMOUSE_BACKING_HUGE_REQUIRE 3u

/* No memory is present initially: dormouse_backing_prefault() makes a part present. */
#define DORMOUSE_BACKING_LAZY 1u
/* The memory is never swapped out. Counts towards RLIMIT_MEMLOCK. */
#define DORMOUSE_BACKING_LOCK 2u
/* There is an inaccessible page before the memory and another one after it. */
#define DORMOUSE_BACKING_GUARD 4u
/* The memory comes from the NUMA node of CPU `cpu`, or from another node if that one is full; or from that node only. */
#define DORMOUSE_BACKING_NEAR_CPU 8u
#define DORMOUSE_BACKING_AT_CPU 16u

/* Result of the check of NUMA nodes: no node was requested; the machine has only one; the kernel does not tell; each page was checked. */
#define DORMOUSE_BACKING_NODES_NOT_ASKED 0u
#define DORMOUSE_BACKING_NODES_ONLY_ONE 1u
#define DORMOUSE_BACKING_NODES_NOT_TOLD 2u
#define DORMOUSE_BACKING_NODES_CHECKED 3u

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_backing_pool;

/* If all fields except the size are zero: memory as malloc() would give it, but prefaulted. */
struct dormouse_backing_options {
    size_t size_bytes;
    /* Size to which the memory may grow; 0: it cannot grow. */
    size_t capacity_bytes;
    unsigned flags;
    unsigned huge;
    unsigned cpu;
};

/* Kinds of pages that the memory really consists of, read from the page table. */
struct dormouse_backing_obtained {
    size_t size_bytes;
    size_t hugetlb_bytes;
    size_t thp_bytes;
    /* If `is_huge_told` is 0, the kernel does not distinguish thp_bytes from small pages, and this includes them. */
    size_t small_bytes;
    /* Bytes that are not in this process's page table, or on the zero page. */
    size_t missing_bytes;
    unsigned is_huge_told;
    unsigned nodes;
    /* With DORMOUSE_BACKING_NODES_CHECKED: the node that was requested, and the number of bytes on other nodes. */
    unsigned node;
    size_t away_bytes;
};

/*
 * Creates memory of this process only. With a name (which shows in /proc/PID/maps), creates a memory file that is
 * sealed at its capacity, so that processes that map it never get a SIGBUS at its end. The memory is zeroes.
 *
 * NULL with errno, and a text from dormouse_backing_why():
 *     EINVAL  the size, the flags or the kind of pages is not valid; a name with a NUL
 *     ENOMEM  the machine or the control group does not have this much memory, or not in huge pages, if these are required
 *     EPERM   the memory cannot be locked
 *     ENODEV  there is no such CPU
 * and errors of the kernel.
 */
struct dormouse_backing_pool *dormouse_backing_create(const char *name, const struct dormouse_backing_options *options);

/*
 * Maps all of a memory file that another process has made and sealed. If `is_prefaulted` is not 0, all of it is then in
 * this process's page table. The file may be closed afterwards.
 *
 * NULL with errno: EINVAL  it is not a memory file, or it could be truncated, which would kill processes that map it
 * and the errors of dormouse_backing_create().
 */
struct dormouse_backing_pool *dormouse_backing_attach(int file, int is_prefaulted);

/* Unmaps a pool. NULL is allowed. */
void dormouse_backing_destroy(struct dormouse_backing_pool *pool);

/* Return the pool's address, its size in bytes, and the size to which it may grow. MT-safe, wait-free, async-signal-safe. */
void *dormouse_backing_base(const struct dormouse_backing_pool *pool);
size_t dormouse_backing_size_bytes(const struct dormouse_backing_pool *pool);
size_t dormouse_backing_capacity_bytes(const struct dormouse_backing_pool *pool);

/* Returns the memory file, to pass it on; it belongs to the pool. -EBADF: no file, or attached. MT-safe, wait-free, async-signal-safe. */
int dormouse_backing_file(const struct dormouse_backing_pool *pool);

/*
 * Makes the pages present that overlap `size_bytes` bytes from `offset` on. Their contents stay, and other threads and
 * processes may use them during the call.
 *
 * Errors: -EINVAL  not inside the pool, or it was attached
 *         -ENOMEM  there is not enough memory
 */
int dormouse_backing_prefault(struct dormouse_backing_pool *pool, size_t offset, size_t size_bytes);

/*
 * Grows the pool to `size_bytes`, in place. No other thread may use the pool's handle during the call; its memory may
 * be used.
 *
 * Errors: -EINVAL  beyond the capacity, or less than the current size, or it was attached
 * and the errors of dormouse_backing_create(). After an error, the pool has its previous size.
 */
int dormouse_backing_grow(struct dormouse_backing_pool *pool, size_t size_bytes);

/* Stores what kinds of pages the pool really consists of. Errors: those of the kernel. */
int dormouse_backing_ask(const struct dormouse_backing_pool *pool, struct dormouse_backing_obtained *obtained);

/* Returns a line of text about the last failure in this thread; valid until the next failure. "" before the first. */
const char *dormouse_backing_why(void);

/* The parts of a buffer that are not present: bytes of the pages that it overlaps, because the kernel counts whole pages. */
struct dormouse_pages_missing {
    size_t size_bytes;
    /* Bytes whose first access faults. */
    size_t untouched_bytes;
    /* Bytes that were read and never written: the one page of zeroes. */
    size_t zero_bytes;
    size_t swapped_bytes;
    /* Bytes for which the kernel does not tell whether they are the zero page. */
    size_t unknown_bytes;
    /* First address that is not memory of this buffer, or may not be. */
    const void *first;
};

/*
 * Checks that each page that a buffer overlaps is memory of its own, so that no access faults and none goes to the page
 * of zeroes. `missing` may be NULL; it is filled in with -EFAULT and -EOPNOTSUPP. The buffer is not accessed. Takes
 * about 20 us, and 10 us for each MiB.
 *
 * Errors: -EFAULT      some of it is not present
 *         -EOPNOTSUPP  all of it can be read, but the kernel does not tell the zero page (Linux before 6.7, without privilege)
 * and errors of the kernel if its page table cannot be read.
 */
int dormouse_pages_check(const void *buffer, size_t size_bytes, struct dormouse_pages_missing *missing);

/*
 * Gives each page that a buffer overlaps memory of its own, so that no access faults and none goes to the page of zeroes. The contents stay,
 * and other threads may use the buffer during the call. The buffer may be static, on the heap or on a stack, or a mapping; in a shared
 * mapping, the shared pages become present. Takes as long as the page faults of writing to the buffer would.
 *
 * Errors: -EACCES  some of it is read-only
 *         -EFAULT  some of it is not mapped, or beyond the end of its file, or there is no free huge page
 *         -ENOMEM  the machine or a memory control group of this process does not have enough memory, or the stack may not grow that far
 *         -EINVAL  it does not end inside the address space
 * and errors of the kernel. After -EACCES, -EINVAL and -ENOMEM, nothing has changed.
 */
int dormouse_pages_populate(void *buffer, size_t size_bytes);

/* Calls dormouse_pages_check(). If it fails, prints the failure, with file and line, and aborts. */
void dormouse_pages_assert(const void *buffer, size_t size_bytes, const char *file, unsigned line);

/* For the start of a benchmark, whose results would otherwise be wrong. */
#define DORMOUSE_ASSERT_BACKED(pointer, size_bytes) dormouse_pages_assert((pointer), (size_bytes), __FILE__, (unsigned)__LINE__)

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
