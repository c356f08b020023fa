/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Buffers that look contiguous and are made of pages from a common budget, for C11 and C++11 (gcc and clang).
 *
 *     struct dormouse_relay_budget *budget = dormouse_relay_budget_create(NULL, 16 << 20, 4096);
 *     struct dormouse_relay_chain chain;
 *     if (budget && dormouse_relay_chain_open(&chain, budget, 8, 2) == 0) {        8 pages now, at least 2 at any time
 *         dormouse_relay_write(&chain, offset, &value, sizeof value);              inlined; one store for 1, 2, 4, 8 bytes
 *         dormouse_relay_read(&chain, offset, &copy, sizeof copy);
 *         dormouse_relay_chain_grow(&chain, 1);
 *         dormouse_relay_chain_close(&chain);
 *     }
 *     dormouse_relay_budget_destroy(budget);
 *
 * A chain's pages are linked in a circle, in any order. The chain remembers the page that was last written to. If the
 * next write is to another page, that page is found by walking from there, the shorter way around. The remembered page
 * is a hint: a signal handler may write to a chain even if it interrupted a write to that chain, as long as it writes
 * other bytes.
 *
 * Offsets are from 0 to the size of the chain. A copy that would end beyond it is refused as a whole. Functions return
 * 0 or a negative errno unless they say otherwise; only dormouse_relay_budget_create() changes errno. Chains are in the
 * caller's memory and must not be moved while they are open. Pointers must be to budgets that were created and not
 * destroyed, and to chains that were opened and not closed, unless NULL is said to be allowed.
 *
 * Define DORMOUSE_RELAY_ALIGNED as 1 before including this header to copy fields in the way for machines without
 * efficient unaligned access: by single stores if both addresses are aligned, otherwise byte by byte, and by memcpy if
 * there are more than 8 bytes.
 *
 * Link with -ldormouse, or with -ldormouse_relay, which contains only this; see dormouse-relay(3).
 */
#ifndef DORMOUSE_RELAY_H
#define DORMOUSE_RELAY_H

#include <stddef.h>
#include <stdint.h>

#ifndef DORMOUSE_RELAY_ALIGNED
#if defined(__x86_64__) || defined(__i386__) || defined(__aarch64__)
#define DORMOUSE_RELAY_ALIGNED 0
#else
#define DORMOUSE_RELAY_ALIGNED 1
#endif
#endif

/* Minimum and maximum size of a page, in bytes; it must be a power of two. */
#define DORMOUSE_RELAY_PAGE_SIZE_BYTES_MIN 4096
#define DORMOUSE_RELAY_PAGE_SIZE_BYTES_MAX 2097152

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_relay_budget;

/* First words of a page's link: the offset of the page in its chain's buffer, and the address of its bytes. */
struct dormouse_i_relay_link {
    size_t offset;
    unsigned char *data;
};

/* A chain. Its members are private. */
struct dormouse_relay_chain {
    struct dormouse_i_relay_link *dormouse_i_written;
    struct dormouse_i_relay_link *dormouse_i_read;
    struct dormouse_i_relay_link *dormouse_i_addressed;
    size_t dormouse_i_page_size_bytes;
    size_t dormouse_i_size_bytes;
    void *dormouse_i_rest[4];
};

/*
 * Creates a budget of all whole pages of `region`, which begins at a multiple of 4096 and which only the budget uses
 * until it is destroyed. The region may be a memory pool of dormouse/backing.h. If `region` is NULL, the library maps
 * `size_bytes` bytes, which take memory when they are first written to.
 *
 * NULL with errno: EINVAL  the page size or the alignment is not valid; or there is no whole page, or 2^32 - 1 of them or more
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_relay_budget *dormouse_relay_budget_create(void *region, size_t size_bytes, size_t page_size_bytes);

/* Return the number of pages of the budget, of free pages, and of free pages that are not promised. MT-safe,
 * wait-free, async-signal-safe. */
size_t dormouse_relay_budget_page_count(const struct dormouse_relay_budget *budget);
size_t dormouse_relay_budget_free_count(const struct dormouse_relay_budget *budget);
size_t dormouse_relay_budget_available_count(const struct dormouse_relay_budget *budget);

/* Destroys a budget. All its chains must be closed. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_relay_budget_destroy(struct dormouse_relay_budget *budget);

/*
 * Makes `*chain` a chain of `page_count` pages, which can always have `promised_count` pages, whatever other chains
 * draw. A new page contains the bytes that its last owner left.
 *
 * Errors: -EINVAL  `page_count` is 0
 *         -ENOSPC  too few pages are free and not promised to others
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_open(struct dormouse_relay_chain *chain, struct dormouse_relay_budget *budget, size_t page_count,
                              size_t promised_count);

/* Gives back the pages and the promise. The chain must not be used otherwise. MT-safe for different chains of one
 * budget, lock-free, async-signal-safe. */
void dormouse_relay_chain_close(struct dormouse_relay_chain *chain);

/*
 * Adds pages after the last one; the contents of the buffer stay where they are. The chain must not be used otherwise
 * during the call.
 *
 * Errors: -ENOSPC  too few pages are free and not promised to others; the chain is unchanged
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_grow(struct dormouse_relay_chain *chain, size_t page_count);

/*
 * Gives back the last pages; their contents are lost. The chain must not be used otherwise during the call.
 *
 * Errors: -EINVAL  no page would be left; the chain is unchanged
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_shrink(struct dormouse_relay_chain *chain, size_t page_count);

/*
 * Changes the number of pages that the chain can always have. The chain must not be used otherwise during the call.
 *
 * Errors: -ENOSPC  this many pages cannot be promised; the promise is unchanged
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_promise(struct dormouse_relay_chain *chain, size_t promised_count);

/* The slow paths of the inline functions below. Do not call these directly. */
#ifdef __GNUC__
__attribute__((cold))
#endif
int dormouse_relay_write_slow(const struct dormouse_relay_chain *chain, size_t offset, const void *source, size_t len);
#ifdef __GNUC__
__attribute__((cold))
#endif
void *dormouse_relay_address_slow(const struct dormouse_relay_chain *chain, size_t offset, size_t len);

/*
 * Copies `len` bytes of the buffer to `target`. These bytes must not be written during the call.
 *
 * Errors: -ERANGE  the bytes end beyond the chain's end
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_relay_read(const struct dormouse_relay_chain *chain, size_t offset, void *target, size_t len);

/* Returns the size of the buffer, in bytes. MT-safe, wait-free, async-signal-safe. */
static inline size_t dormouse_relay_chain_size_bytes(const struct dormouse_relay_chain *chain)
{
    return chain->dormouse_i_size_bytes;
}

/* Returns whether the bytes are in the cached page, and stores their address. */
static inline int dormouse_i_relay_quick(struct dormouse_i_relay_link *const *cache, size_t page_size_bytes, size_t offset,
                                         size_t len, unsigned char **found)
{
    const struct dormouse_i_relay_link *link = __atomic_load_n(cache, __ATOMIC_RELAXED);
    size_t within = offset - link->offset;
    /* No page is smaller than this minimum, so one comparison is enough if the compiler knows a shorter length. */
    int fits = len <= DORMOUSE_RELAY_PAGE_SIZE_BYTES_MIN ? within <= page_size_bytes - len
                                                         : within < page_size_bytes && len <= page_size_bytes - within;
    if (__builtin_expect(!fits, 0))
        return 0;
    *found = link->data + within;
    return 1;
}

#if DORMOUSE_RELAY_ALIGNED
/* Copies `width` bytes by one store. */
#define DORMOUSE_I_RELAY_WORD(width, alignment)                                                                        \
    if ((((uintptr_t)target | (uintptr_t)source) & ((alignment)-1)) == 0) {                                            \
        __builtin_memcpy(__builtin_assume_aligned(target, alignment), __builtin_assume_aligned(source, alignment),     \
                         width);                                                                                       \
        return;                                                                                                        \
    }                                                                                                                  \
    break

static inline void dormouse_i_relay_copy(void *target, const void *source, size_t len)
{
    switch (len) {
    case 2:
        DORMOUSE_I_RELAY_WORD(2, 2);
    case 4:
        DORMOUSE_I_RELAY_WORD(4, 4);
    case 8:
        /* A 32-bit machine requires no more alignment than 4. */
        DORMOUSE_I_RELAY_WORD(8, sizeof(void *));
    default:
        break;
    }
    if (len > 8) {
        __builtin_memcpy(target, source, len);
        return;
    }
    /* Volatile; otherwise the compiler would turn the loop into a call of memcpy. */
    for (size_t index = 0; index < len; index++)
        ((volatile unsigned char *)target)[index] = ((const unsigned char *)source)[index];
}

#undef DORMOUSE_I_RELAY_WORD
#else
static inline void dormouse_i_relay_copy(void *target, const void *source, size_t len)
{
    unsigned char *to = (unsigned char *)target;
    const unsigned char *from = (const unsigned char *)source;
    /* A copy of a constant length is one store or a few; the last two words overlap if the length is not a sum of
     * words. */
    switch (len) {
    case 0:
        return;
    case 1:
        *to = *from;
        return;
    case 2:
        __builtin_memcpy(to, from, 2);
        return;
    case 3:
        __builtin_memcpy(to, from, 2);
        to[2] = from[2];
        return;
    case 4:
        __builtin_memcpy(to, from, 4);
        return;
    case 8:
        __builtin_memcpy(to, from, 8);
        return;
    default:
        break;
    }
    if (len < 8) {
        __builtin_memcpy(to, from, 4);
        __builtin_memcpy(to + len - 4, from + len - 4, 4);
    } else if (len <= 16) {
        __builtin_memcpy(to, from, 8);
        __builtin_memcpy(to + len - 8, from + len - 8, 8);
    } else if (len <= 32) {
        __builtin_memcpy(to, from, 8);
        __builtin_memcpy(to + 8, from + 8, 8);
        __builtin_memcpy(to + len - 16, from + len - 16, 8);
        __builtin_memcpy(to + len - 8, from + len - 8, 8);
    } else {
        __builtin_memcpy(to, from, len);
    }
}
#endif

/*
 * Copies `len` bytes from `source`, which is not in the buffer, to `offset` in the buffer. Threads or signal handlers
 * that write at the same time must write other bytes; these bytes must not be read during the call.
 *
 * Errors: -ERANGE  the bytes end beyond the chain's end; nothing was copied
 * MT-safe, wait-free, async-signal-safe.
 */
static inline int dormouse_relay_write(struct dormouse_relay_chain *chain, size_t offset, const void *source, size_t len)
{
    unsigned char *target;
    if (dormouse_i_relay_quick(&chain->dormouse_i_written, chain->dormouse_i_page_size_bytes, offset, len, &target)) {
        dormouse_i_relay_copy(target, source, len);
        return 0;
    }
    if (__builtin_constant_p(len) && len <= 8) {
        /* A copy of the field, so that the field itself need not be in memory in the other cases. */
        unsigned char held[8] = { 0 };
        __builtin_memcpy(held, source, len);
        return dormouse_relay_write_slow(chain, offset, held, len);
    }
    return dormouse_relay_write_slow(chain, offset, source, len);
}

/*
 * Returns the address of `len` bytes of the buffer, for example of a header that is filled in later. NULL if they end
 * beyond the chain's end, or span more than one page. The address is valid until the chain shrinks or is closed.
 *
 * MT-safe, wait-free, async-signal-safe.
 */
static inline void *dormouse_relay_address(const struct dormouse_relay_chain *chain, size_t offset, size_t len)
{
    unsigned char *found;
    if (dormouse_i_relay_quick(&chain->dormouse_i_addressed, chain->dormouse_i_page_size_bytes, offset, len, &found))
        return found;
    return dormouse_relay_address_slow(chain, offset, len);
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
