/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Buffers made of pages from a common budget, for C11 and C++11 (gcc and clang): chains, which look contiguous, and
 * channels, which record. Channels are in the second half of this file.
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
#ifdef __GNUC__
__attribute__((cold))
#endif
int dormouse_relay_write_wrapping_slow(const struct dormouse_relay_chain *chain, size_t offset, const void *source,
                                       size_t len);

/*
 * Copies `len` bytes of the buffer to `target`. These bytes must not be written during the call.
 *
 * Errors: -ERANGE  the bytes end beyond the chain's end
 * MT-safe, wait-free, async-signal-safe.
 */
int dormouse_relay_read(const struct dormouse_relay_chain *chain, size_t offset, void *target, size_t len);

/* Like dormouse_relay_read(), at an offset as in dormouse_relay_write_wrapping(). -ERANGE: `len` is larger than the chain. */
int dormouse_relay_read_wrapping(const struct dormouse_relay_chain *chain, size_t offset, void *target, size_t len);

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

/* Returns the offset modulo the size of the chain. */
static inline size_t dormouse_i_relay_wrapped(const struct dormouse_relay_chain *chain, size_t offset)
{
    size_t size_bytes = chain->dormouse_i_size_bytes;
    return (size_bytes & (size_bytes - 1)) == 0 ? offset & (size_bytes - 1) : offset % size_bytes;
}

/*
 * Like dormouse_relay_write(), for an offset that only grows: it is taken modulo the size of the chain, and bytes that would
 * end beyond the chain's end continue at its beginning. If the size is a power of two, the offset may overflow.
 *
 * Errors: -ERANGE  `len` is larger than the chain; nothing was copied
 * MT-safe, wait-free, async-signal-safe.
 */
static inline int dormouse_relay_write_wrapping(struct dormouse_relay_chain *chain, size_t offset, const void *source,
                                                size_t len)
{
    size_t at = dormouse_i_relay_wrapped(chain, offset);
    if (__builtin_expect(len > chain->dormouse_i_size_bytes - at, 0))
        return dormouse_relay_write_wrapping_slow(chain, at, source, len);
    return dormouse_relay_write(chain, at, source, len);
}

/* Like dormouse_relay_address(), at an offset as in dormouse_relay_write_wrapping(). */
static inline void *dormouse_relay_address_wrapping(const struct dormouse_relay_chain *chain, size_t offset, size_t len)
{
    return dormouse_relay_address(chain, dormouse_i_relay_wrapped(chain, offset), len);
}

#if UINTPTR_MAX > 0xffffffffu

/*
 * A channel is a recorder: a buffer for each CPU, made of pages that all buffers share. Any thread and signal handler
 * may write to it, in any number of processes; a reader takes pages while writers go on, or after they were killed.
 *
 *     struct dormouse_relay_channel_options options;
 *     dormouse_relay_channel_options_init(&options, DORMOUSE_RELAY_OVERWRITE);
 *     struct dormouse_relay_channel *channel = dormouse_relay_channel_create(-1, &options);
 *     struct event *event = dormouse_relay_channel_reserve(channel, sizeof *event);     NULL: lost, and counted
 *     if (event) {
 *         event->time = now();
 *         dormouse_relay_channel_commit(event);
 *     }
 *
 * Channels need 64-bit addresses.
 */
struct dormouse_relay_channel {
    uint64_t *dormouse_i_words;
    size_t dormouse_i_pages;
    size_t dormouse_i_page_words;
    uint32_t dormouse_i_buffer_count;
    uint32_t dormouse_i_page_count;
    /* More follows, which the library knows. */
};

/* What happens to a record for which there is no free page: it is lost, or the oldest ones are overwritten. */
#define DORMOUSE_RELAY_DISCARD 0u
#define DORMOUSE_RELAY_OVERWRITE 1u

/* The size and mode of a channel. */
struct dormouse_relay_channel_options {
    unsigned int mode;
    size_t buffer_count;    /* number of buffers; those of CPUs beyond it are shared */
    size_t page_count;      /* number of pages of all buffers; in overwrite mode more than buffers */
    size_t page_size_bytes; /* size of a page in bytes: a power of two from 4096 to 2 MiB */
    size_t kept_page_count; /* discard mode: number of pages for each buffer that only this buffer draws */
};

/* A page that a reader has taken. The members after the first three are private. */
struct dormouse_relay_page {
    uint64_t number;           /* number of the page in its buffer, from 1; overwritten pages are missing */
    uint64_t record_count;     /* number of its records */
    uint64_t unfinished_count; /* number of places with records that were never committed */
    uint32_t dormouse_i_buffer;
    uint32_t dormouse_i_page;
    uint32_t dormouse_i_end;
    uint32_t dormouse_i_is_reusable;
    uint64_t dormouse_i_at;
};

/* Records of a buffer that no reader will find, since the channel was created. */
struct dormouse_relay_counts {
    uint64_t lost_full;   /* number of records for which there was no page */
    uint64_t lost_big;    /* number of records that were larger than a page */
    uint64_t overwritten; /* number of committed records that were overwritten before a reader took them */
};

/* Flag of dormouse_relay_channel_take(): writers that have not committed a record never will, because they were killed. */
#define DORMOUSE_RELAY_WRITERS_ENDED 1u
/* Another flag: some writers may have been killed, and others be at work. A page with records that are not committed is taken
 * without them, and never used again. */
#define DORMOUSE_RELAY_WRITERS_STUCK 2u

/* Sets options for a buffer for each possible CPU, with eight pages of 64 KiB for each of them. In discard mode two of
 * the eight are kept. MT-safe. */
void dormouse_relay_channel_options_init(struct dormouse_relay_channel_options *options, unsigned int mode);

/*
 * Creates a channel, in private memory if `file` is -1, or in a file or memfd, which is emptied. The file may be closed
 * afterwards. NULL with errno: EINVAL for options, or an error of ftruncate(2) or mmap(2).
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_relay_channel *dormouse_relay_channel_create(int file, const struct dormouse_relay_channel_options *options);

/*
 * Opens the channel of a file, to write or to read. The file must not be truncated, and only channels may write to it.
 * NULL with errno: EBADMSG: there is no channel of this version in it; or an error of fstat(2) or mmap(2).
 * MT-safe, blocking, not async-signal-safe.
 */
struct dormouse_relay_channel *dormouse_relay_channel_open(int file);

/* Unmaps the channel. NULL is allowed. MT-safe for channels that are not used any more; not async-signal-safe. */
void dormouse_relay_channel_destroy(struct dormouse_relay_channel *channel);

/* The slow paths of the inline functions below. Do not call these directly. */
uint32_t dormouse_relay_channel_this_buffer_slow(const struct dormouse_relay_channel *channel);
#ifdef __GNUC__
__attribute__((cold))
#endif
void *dormouse_relay_channel_reserve_slow(struct dormouse_relay_channel *channel, uint32_t buffer, size_t len);

/* Closes the buffer's current page, so that it can be taken. Returns 1 if it had a record, otherwise 0. MT-safe,
 * lock-free, async-signal-safe. */
int dormouse_relay_channel_flush(struct dormouse_relay_channel *channel, uint32_t buffer);

/*
 * Takes the oldest closed page of a buffer; nobody else finds or changes it until it is given back.
 *
 * Errors: -EAGAIN  there is none
 *         -EBUSY   a record in it is reserved and not yet committed
 *         -EINVAL  unknown flags
 * MT-safe, lock-free, async-signal-safe.
 */
int dormouse_relay_channel_take(struct dormouse_relay_channel *channel, uint32_t buffer, struct dormouse_relay_page *page,
                                unsigned int flags);

/* Returns the page's next record and stores its length in bytes; NULL after the last. The record is aligned to 8, and valid
 * until the page is given back. MT-safe for different pages, wait-free, async-signal-safe. */
const void *dormouse_relay_channel_next(struct dormouse_relay_channel *channel, struct dormouse_relay_page *page,
                                        size_t *len);

/* Gives a page back. MT-safe, lock-free, async-signal-safe. */
void dormouse_relay_channel_give_back(struct dormouse_relay_channel *channel, const struct dormouse_relay_page *page);

/* Stores what was lost of a buffer. Returns 0, or -EINVAL if there is no such buffer. MT-safe, wait-free,
 * async-signal-safe. */
int dormouse_relay_channel_counts(struct dormouse_relay_channel *channel, uint32_t buffer,
                                  struct dormouse_relay_counts *counts);

/* Returns the number of buffers, and the size of the largest record. MT-safe, wait-free, async-signal-safe. */
static inline uint32_t dormouse_relay_channel_buffer_count(const struct dormouse_relay_channel *channel)
{
    return channel->dormouse_i_buffer_count;
}
static inline size_t dormouse_relay_channel_record_size_max_bytes(const struct dormouse_relay_channel *channel)
{
    return (channel->dormouse_i_page_words - 1) * 8;
}

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__has_include)
#if __has_include(<sys/rseq.h>)
#define DORMOUSE_I_RELAY_RSEQ 1
extern const ptrdiff_t __rseq_offset;
#endif
#endif

/* Returns the buffer of the CPU that the thread runs on. MT-safe, wait-free, async-signal-safe. */
static inline uint32_t dormouse_relay_channel_this_buffer(const struct dormouse_relay_channel *channel)
{
#ifdef DORMOUSE_I_RELAY_RSEQ
    /* The C library's rseq structure has the CPU's number after a word. If it is not registered, the number is large. */
    uint32_t cpu;
#ifdef __x86_64__
    __asm__ volatile("movl %%fs:4(%1), %0" : "=r"(cpu) : "r"(__rseq_offset));
#else
    uint64_t thread;
    __asm__ volatile("mrs %1, tpidr_el0\n\tadd %1, %1, %2\n\tldr %w0, [%1, #4]"
                     : "=r"(cpu), "=&r"(thread)
                     : "r"(__rseq_offset));
#endif
    return __builtin_expect(cpu < channel->dormouse_i_buffer_count, 1) ? cpu : cpu % channel->dormouse_i_buffer_count;
#else
    return dormouse_relay_channel_this_buffer_slow(channel);
#endif
}

/*
 * Reserves `len` bytes for a record in a buffer, or in the first if there is no such buffer. Returns their address, a
 * multiple of 8; they are zero. NULL: the record is lost, and counted. The thread may be moved to another CPU, be
 * interrupted by a handler that writes too, or pass the record to another thread, before it is committed or cancelled.
 * Until then the page is neither taken nor overwritten.
 *
 * MT-safe, lock-free, async-signal-safe.
 */
static inline void *dormouse_relay_channel_reserve_in(struct dormouse_relay_channel *channel, uint32_t buffer, size_t len)
{
    if (__builtin_expect(buffer < channel->dormouse_i_buffer_count && len <= DORMOUSE_RELAY_PAGE_SIZE_BYTES_MAX, 1)) {
        uint64_t *state = channel->dormouse_i_words + 16 + (size_t)buffer * 16;
        uint64_t seen = __atomic_load_n(state, __ATOMIC_ACQUIRE);
        size_t offset = (size_t)seen & 0x7ffff, page = (size_t)(seen >> 19) & 0x3ffff;
        size_t words = 1 + (len + 7) / 8;
        if (__builtin_expect((seen >> 37 & 1) && offset + words <= channel->dormouse_i_page_words &&
                                 page < channel->dormouse_i_page_count &&
                                 __atomic_compare_exchange_n(state, &seen, seen + words, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED),
                             1)) {
            uint64_t *frame =
                channel->dormouse_i_words + channel->dormouse_i_pages + page * channel->dormouse_i_page_words + offset;
            __atomic_store_n(frame, (uint64_t)1 << 32 | len, __ATOMIC_RELAXED);
            /* If the thread is killed, its frame is there before any of the record's bytes. */
            __atomic_signal_fence(__ATOMIC_SEQ_CST);
            return frame + 1;
        }
    }
    return dormouse_relay_channel_reserve_slow(channel, buffer, len);
}

/* Like dormouse_relay_channel_reserve_in(), in the buffer of this CPU. */
static inline void *dormouse_relay_channel_reserve(struct dormouse_relay_channel *channel, size_t len)
{
    return dormouse_relay_channel_reserve_in(channel, dormouse_relay_channel_this_buffer(channel), len);
}

static inline void dormouse_i_relay_end(void *record, uint64_t status)
{
    uint64_t *frame = (uint64_t *)record - 1;
    __atomic_store_n(frame, status << 32 | (uint32_t)*frame, __ATOMIC_RELEASE);
}

/* Commits a record that was reserved: readers find it. MT-safe, wait-free, async-signal-safe. */
static inline void dormouse_relay_channel_commit(void *record)
{
    dormouse_i_relay_end(record, 2);
}

/* Cancels a record that was reserved: readers skip it. MT-safe, wait-free, async-signal-safe. */
static inline void dormouse_relay_channel_cancel(void *record)
{
    dormouse_i_relay_end(record, 3);
}

/*
 * Writes a record that consists of a header and a body, each of which may be empty, to the buffer of this CPU.
 *
 * Errors: -1  the record is lost, and counted
 * MT-safe, lock-free, async-signal-safe.
 */
static inline int dormouse_relay_channel_write(struct dormouse_relay_channel *channel, const void *header,
                                               size_t header_size_bytes, const void *body, size_t body_size_bytes)
{
    size_t len = header_size_bytes + body_size_bytes;
    unsigned char *record =
        (unsigned char *)dormouse_relay_channel_reserve(channel, len < body_size_bytes ? SIZE_MAX : len);
    if (__builtin_expect(record == NULL, 0))
        return -1;
    dormouse_i_relay_copy(record, header, header_size_bytes);
    dormouse_i_relay_copy(record + header_size_bytes, body, body_size_bytes);
    dormouse_relay_channel_commit(record);
    return 0;
}

#endif /* 64-bit addresses */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
