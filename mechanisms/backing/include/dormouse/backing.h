/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Memory that is really there, and whether a buffer is: for C11 and C++11 (gcc and clang).
 *
 *     struct dormouse_backing_options options = { 0 };
 *     options.size_bytes = 64 << 20;
 *     options.huge = DORMOUSE_BACKING_HUGE_PREFER;
 *     options.flags = DORMOUSE_BACKING_GUARD | DORMOUSE_BACKING_LOCK;
 *     struct dormouse_backing_pool *pool = dormouse_backing_create(NULL, &options);     NULL: of this process alone; else a memory file
 *     if (!pool)
 *         fprintf(stderr, "%s\n", dormouse_backing_why());
 *
 *     DORMOUSE_ASSERT_BACKED(samples, sizeof samples);                                  in a benchmark, before it measures
 *
 * Memory that nobody has written yet is a page fault at each first touch, or the one page of zeroes that makes a benchmark read too
 * fast; memory that runs out later is a SIGBUS. Here it is allocated, entered in the page table, and looked at there, and what
 * cannot be had is an error at that time. Prefaulting costs what the faults would have cost.
 *
 * Functions return 0 or a negative errno unless they say otherwise; only those that create and attach change errno. Pointers are to what was
 * created or attached and not destroyed, unless NULL is said to be allowed. All are MT-safe for different pools, may block, and are not
 * async-signal-safe, unless they say otherwise.
 *
 * Link with -ldormouse, or with -ldormouse_backing, which has nothing else in it; see dormouse-backing(3).
 */
#ifndef DORMOUSE_BACKING_H
#define DORMOUSE_BACKING_H

#include <stddef.h>

/* What pages memory is made of: what the system's settings give; small ones; the highest rung of hugetlb, transparent huge pages and small ones;
   huge ones or an error, rounded up to 2 MiB. */
#define DORMOUSE_BACKING_HUGE_AS_CONFIGURED 0u
#define DORMOUSE_BACKING_HUGE_NEVER 1u
#define DORMOUSE_BACKING_HUGE_PREFER 2u
#define DORMOUSE_BACKING_HUGE_REQUIRE 3u

/* Nothing is there at first: dormouse_backing_prefault() has a part be there. */
#define DORMOUSE_BACKING_LAZY 1u
/* It is never swapped out. Counts towards RLIMIT_MEMLOCK. */
#define DORMOUSE_BACKING_LOCK 2u
/* An inaccessible page lies before it and one behind it. */
#define DORMOUSE_BACKING_GUARD 4u
/* It comes from the NUMA node of CPU `cpu`, or from another where that has none left; or from that one alone. */
#define DORMOUSE_BACKING_NEAR_CPU 8u
#define DORMOUSE_BACKING_AT_CPU 16u

/* Where memory is: no node was asked for; the machine has one; the kernel does not tell; each page was asked. */
#define DORMOUSE_BACKING_NODES_NOT_ASKED 0u
#define DORMOUSE_BACKING_NODES_ONLY_ONE 1u
#define DORMOUSE_BACKING_NODES_NOT_TOLD 2u
#define DORMOUSE_BACKING_NODES_CHECKED 3u

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_backing_pool;

/* Zeroes but for the size are memory as malloc() would have it, and prefaulted. */
struct dormouse_backing_options {
    size_t size_bytes;
    /* What it may grow to; 0: it does not. */
    size_t capacity_bytes;
    unsigned flags;
    unsigned huge;
    unsigned cpu;
};

/* What memory is really made of, read from the page table. */
struct dormouse_backing_obtained {
    size_t size_bytes;
    size_t hugetlb_bytes;
    size_t thp_bytes;
    /* Where `is_huge_told` is 0, the kernel does not tell thp_bytes from these. */
    size_t small_bytes;
    /* Not in this process's page table, or on the zero page. */
    size_t missing_bytes;
    unsigned is_huge_told;
    unsigned nodes;
    /* With DORMOUSE_BACKING_NODES_CHECKED: the node that was asked for, and bytes on another. */
    unsigned node;
    size_t away_bytes;
};

/*
 * Memory of this process alone, or, with a name (it shows in /proc/PID/maps), in a memory file that is sealed at its capacity, so that others
 * who map it never meet a SIGBUS at its end. It is zeroes.
 *
 * NULL with errno, and dormouse_backing_why() in words:
 *     EINVAL  no such size, flags or kind of pages; a name with a NUL
 *     ENOMEM  the machine, or the control group, has not as much; or not in huge pages, where these are required
 *     EPERM   it cannot be locked
 *     ENODEV  there is no such CPU
 * and what the kernel says.
 */
struct dormouse_backing_pool *dormouse_backing_create(const char *name, const struct dormouse_backing_options *options);

/*
 * Maps all of a memory file that another process has made and sealed; with `is_prefaulted` not 0, all of it is in this process's page table then.
 * The file may be closed afterwards.
 *
 * NULL with errno: EINVAL  no memory file, or it may be made shorter, which would kill those who map it
 * and as dormouse_backing_create().
 */
struct dormouse_backing_pool *dormouse_backing_attach(int file, int is_prefaulted);

/* Unmaps it. NULL is allowed. */
void dormouse_backing_destroy(struct dormouse_backing_pool *pool);

/* Where it starts, how many bytes it has, and how many it may grow to. MT-safe, wait-free, async-signal-safe. */
void *dormouse_backing_base(const struct dormouse_backing_pool *pool);
size_t dormouse_backing_size_bytes(const struct dormouse_backing_pool *pool);
size_t dormouse_backing_capacity_bytes(const struct dormouse_backing_pool *pool);

/* The memory file, to hand out; it is the pool's. -EBADF: it has none, or was attached. MT-safe, wait-free, async-signal-safe. */
int dormouse_backing_file(const struct dormouse_backing_pool *pool);

/*
 * Has the pages that overlap `size_bytes` bytes from `offset` on be there. What they hold stays, and others may use them.
 *
 * Errors: -EINVAL  not inside the pool, or it was attached
 *         -ENOMEM  there is not as much
 */
int dormouse_backing_prefault(struct dormouse_backing_pool *pool, size_t offset, size_t size_bytes);

/*
 * Makes it grow to `size_bytes`, in place. Nobody else uses the pool's handle meanwhile; its memory may be used.
 *
 * Errors: -EINVAL  beyond the capacity, or less than it has, or it was attached
 * and as dormouse_backing_create(). It is as large as before then.
 */
int dormouse_backing_grow(struct dormouse_backing_pool *pool, size_t size_bytes);

/* What it is really made of. Errors: what the kernel says. */
int dormouse_backing_ask(const struct dormouse_backing_pool *pool, struct dormouse_backing_obtained *obtained);

/* What has failed in this thread last, one line; good until the next failure. "" before the first. */
const char *dormouse_backing_why(void);

/* What is not there of a buffer: bytes of the pages that it overlaps, of which the kernel counts whole ones. */
struct dormouse_pages_missing {
    size_t size_bytes;
    /* The first access faults. */
    size_t untouched_bytes;
    /* Read and never written: the one page of zeroes. */
    size_t zero_bytes;
    size_t swapped_bytes;
    /* The kernel does not tell whether they stand on the zero page. */
    size_t unknown_bytes;
    /* The first address that is none of this buffer's memory, or may be none. */
    const void *first;
};

/*
 * Whether each page that a buffer overlaps is memory of its own, so that no access faults and none goes to the page of zeroes. `missing` may be
 * NULL; it is filled in with -EFAULT and -EOPNOTSUPP. The buffer is not accessed. About 20 us, and 10 us for each MiB.
 *
 * Errors: -EFAULT      some of it is not there
 *         -EOPNOTSUPP  all of it can be read, but the kernel does not tell the zero page (Linux before 6.7, without privilege)
 * and what the kernel says where its page table cannot be read.
 */
int dormouse_pages_check(const void *buffer, size_t size_bytes, struct dormouse_pages_missing *missing);

/* As dormouse_pages_check(), and prints what is wrong with file and line, and aborts. */
void dormouse_pages_assert(const void *buffer, size_t size_bytes, const char *file, unsigned line);

/* For the start of a benchmark, whose figures would be about something else. */
#define DORMOUSE_ASSERT_BACKED(pointer, size_bytes) dormouse_pages_assert((pointer), (size_bytes), __FILE__, (unsigned)__LINE__)

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
