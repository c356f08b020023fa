/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Buffers that look contiguous and are made of pages from a common budget, for C11 and C++11 (gcc and clang).
 *
 *     struct dormouse_relay_budget *budget = dormouse_relay_budget_create(NULL, 16 << 20, 4096);
 *     struct dormouse_relay_chain chain;
 *     if (budget && dormouse_relay_chain_open(&chain, budget, 8, 2) == 0) {        8 pages now, 2 of them whatever others draw
 *         dormouse_relay_write(&chain, offset, &value, sizeof value);              inlined; one store for 1, 2, 4, 8 bytes
 *         dormouse_relay_read(&chain, offset, &copy, sizeof copy);
 *         dormouse_relay_chain_grow(&chain, 1);
 *         dormouse_relay_chain_close(&chain);
 *     }
 *     dormouse_relay_budget_destroy(budget);
 *
 * A chain's pages are linked in a circle, in any order. It remembers the page that was last written to, and where the next write is
 * not to that page, looks for its own from there, the shorter way around. What is remembered is a hint: a signal handler may write to a
 * chain that it has interrupted a write to, to other bytes of it.
 *
 * Offsets go from 0 to the size of the chain. What would end beyond that is refused, and nothing of it is copied. Functions return 0 or
 * a negative errno unless they say otherwise; only dormouse_relay_budget_create() changes errno. Chains are in the caller's memory and
 * must not be moved while they are open. Unless NULL is said to be allowed, pointers are to what was created or opened and not ended.
 *
 * Define DORMOUSE_RELAY_ALIGNED as 1 before including this header to have fields copied as on machines without efficient unaligned
 * access: by single stores where both addresses are aligned, else byte by byte, and by memcpy where there are more than 8.
 *
 * Link with -ldormouse, or with -ldormouse_relay, which has nothing else in it; see dormouse-relay(3).
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

/* Least and greatest size of a page; a power of two. */
#define DORMOUSE_RELAY_PAGE_SIZE_BYTES_MIN 4096
#define DORMOUSE_RELAY_PAGE_SIZE_BYTES_MAX 2097152

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_relay_budget;

/* The first words of what a budget keeps of each page: where it begins in its chain's buffer, and in memory. */
struct dormouse_i_relay_link {
    size_t offset;
    unsigned char *data;
};

/* A chain. Its members are the library's. */
struct dormouse_relay_chain {
    struct dormouse_i_relay_link *dormouse_i_written;
    struct dormouse_i_relay_link *dormouse_i_read;
    struct dormouse_i_relay_link *dormouse_i_addressed;
    size_t dormouse_i_page_size_bytes;
    size_t dormouse_i_size_bytes;
    void *dormouse_i_rest[4];
};

/*
 * A budget of all whole pages of `region`, which begins at a multiple of 4096 and is nobody else's until the budget ends. It may be a pool of
 * dormouse/backing.h, whose pages are there. Where `region` is NULL, the library maps as many bytes, which become memory as they are written to.
 *
 * NULL with errno: EINVAL  no page size, no alignment, no whole page, or 2^32 - 1 of them or more
 *                  ENOMEM  the system has no memory for it
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_relay_budget *dormouse_relay_budget_create(void *region, size_t size_bytes, size_t page_size_bytes);

/* Pages of the budget; of these, those that no chain has; of these, those that are not promised. MT-safe, wait-free, async-signal-safe. */
size_t dormouse_relay_budget_page_count(const struct dormouse_relay_budget *budget);
size_t dormouse_relay_budget_free_count(const struct dormouse_relay_budget *budget);
size_t dormouse_relay_budget_available_count(const struct dormouse_relay_budget *budget);

/* Ends a budget whose chains are closed. NULL is allowed. MT-safe, blocking, not async-signal-safe. */
void dormouse_relay_budget_destroy(struct dormouse_relay_budget *budget);

/*
 * Makes `*chain` a chain of `page_count` pages, which may always have `promised_count` pages, whatever other chains draw. The bytes
 * of a page are those that its last owner left.
 *
 * Errors: -EINVAL  `page_count` is 0
 *         -ENOSPC  there are not so many pages that are not promised to others
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_open(struct dormouse_relay_chain *chain, struct dormouse_relay_budget *budget, size_t page_count,
                              size_t promised_count);

/* Gives the pages and the promise back. Nobody else uses the chain. As dormouse_relay_chain_open(). */
void dormouse_relay_chain_close(struct dormouse_relay_chain *chain);

/*
 * Adds pages behind the last one; what is in the buffer stays where it is. Nobody else uses the chain meanwhile.
 *
 * Errors: -ENOSPC  as above; the chain is as it was
 * MT-safe for different chains of one budget, lock-free, async-signal-safe.
 */
int dormouse_relay_chain_grow(struct dormouse_relay_chain *chain, size_t page_count);

/*
 * Gives the last pages back, with what is in them. Nobody else uses the chain meanwhile.
 *
 * Errors: -EINVAL  no page would be left; the chain is as it was
 * As dormouse_relay_chain_grow().
 */
int dormouse_relay_chain_shrink(struct dormouse_relay_chain *chain, size_t page_count);

/*
 * Changes how many pages the chain may always have.
 *
 * Errors: -ENOSPC  so many cannot be promised; it is as it was
 * As dormouse_relay_chain_grow().
 */
int dormouse_relay_chain_promise(struct dormouse_relay_chain *chain, size_t promised_count);

/* What the inline functions below leave over. Not to be called otherwise. */
#ifdef __GNUC__
__attribute__((cold))
#endif
int dormouse_relay_write_slow(const struct dormouse_relay_chain *chain, size_t offset, const void *source, size_t len);
#ifdef __GNUC__
__attribute__((cold))
#endif
void *dormouse_relay_address_slow(const struct dormouse_relay_chain *chain, size_t offset, size_t len);

/*
 * Copies `len` bytes of the buffer to `target`. Nobody writes to these bytes meanwhile.
 *
 * Errors: -ERANGE  they end beyond the chain's end
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_relay_read(const struct dormouse_relay_chain *chain, size_t offset, void *target, size_t len);

/* Bytes of the buffer. MT-safe, wait-free, async-signal-safe. */
static inline size_t dormouse_relay_chain_size_bytes(const struct dormouse_relay_chain *chain)
{
    return chain->dormouse_i_size_bytes;
}

/* Whether the bytes are in the cached page, and where. */
static inline int dormouse_i_relay_quick(struct dormouse_i_relay_link *const *cache, size_t page_size_bytes, size_t offset,
                                         size_t len, unsigned char **found)
{
    const struct dormouse_i_relay_link *link = __atomic_load_n(cache, __ATOMIC_RELAXED);
    size_t within = offset - link->offset;
    /* No page is shorter, so one comparison does where the compiler knows a shorter length. */
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
        /* A 32-bit machine has no more to ask for than 4. */
        DORMOUSE_I_RELAY_WORD(8, sizeof(void *));
    default:
        break;
    }
    if (len > 8) {
        __builtin_memcpy(target, source, len);
        return;
    }
    /* Volatile, or the compiler would make a call of memcpy of the loop. */
    for (size_t index = 0; index < len; index++)
        ((volatile unsigned char *)target)[index] = ((const unsigned char *)source)[index];
}

#undef DORMOUSE_I_RELAY_WORD
#else
static inline void dormouse_i_relay_copy(void *target, const void *source, size_t len)
{
    unsigned char *to = (unsigned char *)target;
    const unsigned char *from = (const unsigned char *)source;
    /* A copy of a constant length is a store, or a few; the last two words overlap where the length is no sum of words. */
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
 * Copies `len` bytes at `source`, which are not in the buffer, to `offset` on. Who writes at the same time, another thread or a signal
 * handler, writes to other bytes; nobody reads them.
 *
 * Errors: -ERANGE  they end beyond the chain's end; nothing was copied
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
        /* A copy of the field, so that it need not be in memory for any other case. */
        unsigned char held[8] = { 0 };
        __builtin_memcpy(held, source, len);
        return dormouse_relay_write_slow(chain, offset, held, len);
    }
    return dormouse_relay_write_slow(chain, offset, source, len);
}

/*
 * Where `len` bytes of the buffer are, for a header that is filled in later, in place. NULL: they end beyond the chain's end, or lie in
 * more than one page. The address is good until the chain shrinks or is closed.
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
