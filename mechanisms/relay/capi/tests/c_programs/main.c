/* Page chains and channels with every kind of user: one thread with an oracle, several threads, a signal handler, another
 * process. C11, C++11. */
#include <dormouse/relay.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define PAGE ((size_t)DORMOUSE_RELAY_PAGE_SIZE_BYTES_MIN)
#define PAGES 12

static uint64_t state = 88172645463325252u;

static uint64_t draw_number(void)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void check_arguments(void)
{
    const size_t wrong[] = { 0, 1, 4095, 12288, 2 * DORMOUSE_RELAY_PAGE_SIZE_BYTES_MAX, SIZE_MAX };
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        errno = 0;
        assert(dormouse_relay_budget_create(NULL, 16 * PAGE, wrong[index]) == NULL && errno == EINVAL);
    }
    errno = 0;
    assert(dormouse_relay_budget_create(NULL, PAGE - 1, PAGE) == NULL && errno == EINVAL);
    errno = 0;
    assert(dormouse_relay_budget_create(NULL, SIZE_MAX, PAGE) == NULL && errno == ENOMEM);
    dormouse_relay_budget_destroy(NULL);

    unsigned char *region = (unsigned char *)aligned_alloc(PAGE, 4 * PAGE);
    assert(region != NULL);
    memset(region, 0, 4 * PAGE);
    errno = 0;
    assert(dormouse_relay_budget_create(region + 64, 2 * PAGE, PAGE) == NULL && errno == EINVAL);
    struct dormouse_relay_budget *budget = dormouse_relay_budget_create(region, 4 * PAGE - 1, PAGE);
    assert(budget != NULL && dormouse_relay_budget_page_count(budget) == 3);

    errno = 7;
    struct dormouse_relay_chain chain, other;
    assert(dormouse_relay_chain_open(&chain, budget, 0, 0) == -EINVAL);
    assert(dormouse_relay_chain_open(&chain, budget, 4, 0) == -ENOSPC);
    assert(dormouse_relay_chain_open(&chain, budget, 1, 4) == -ENOSPC);
    assert(dormouse_relay_budget_available_count(budget) == 3);
    assert(dormouse_relay_chain_open(&chain, budget, 1, 2) == 0);
    assert(dormouse_relay_budget_free_count(budget) == 2 && dormouse_relay_budget_available_count(budget) == 1);
    assert(dormouse_relay_chain_open(&other, budget, 2, 0) == -ENOSPC);
    assert(dormouse_relay_chain_open(&other, budget, 1, 0) == 0);
    assert(dormouse_relay_chain_grow(&other, 1) == -ENOSPC);
    assert(dormouse_relay_chain_promise(&other, 2) == -ENOSPC);
    assert(dormouse_relay_chain_grow(&chain, 1) == 0 && dormouse_relay_chain_size_bytes(&chain) == 2 * PAGE);
    assert(dormouse_relay_chain_shrink(&chain, 2) == -EINVAL);
    assert(dormouse_relay_chain_promise(&chain, 0) == 0);

    unsigned char bytes[16] = { 1, 2, 3 }, found[16] = { 0 };
    assert(dormouse_relay_write(&chain, 2 * PAGE - 15, bytes, sizeof bytes) == -ERANGE);
    assert(dormouse_relay_write(&chain, 2 * PAGE, bytes, 1) == -ERANGE);
    assert(dormouse_relay_write(&chain, 2 * PAGE, bytes, 0) == 0);
    assert(dormouse_relay_write(&chain, SIZE_MAX, bytes, 2) == -ERANGE);
    assert(dormouse_relay_write(&chain, 0, bytes, SIZE_MAX) == -ERANGE);
    assert(dormouse_relay_read(&chain, 2 * PAGE - 15, found, sizeof found) == -ERANGE && found[0] == 0);
    assert(dormouse_relay_read(&chain, 2 * PAGE - 16, found, sizeof found) == 0 && found[1] == 0);
    assert(dormouse_relay_write(&chain, PAGE - 1, bytes, 3) == 0);
    assert(dormouse_relay_read(&chain, PAGE - 1, found, 3) == 0 && memcmp(found, bytes, 3) == 0);
    assert(dormouse_relay_address(&chain, PAGE - 1, 2) == NULL);
    assert(dormouse_relay_address(&chain, 2 * PAGE - 1, 2) == NULL);
    unsigned char *there = (unsigned char *)dormouse_relay_address(&chain, PAGE, 8);
    assert(there >= region && there < region + 3 * PAGE && there[0] == 2 && there[1] == 3);
    dormouse_relay_chain_close(&other);
    dormouse_relay_chain_close(&chain);
    assert(dormouse_relay_budget_available_count(budget) == 3);
    assert(errno == 7 && "nothing but the making of a budget changes errno");
    dormouse_relay_budget_destroy(budget);
    free(region);
}

/* Writes with a length that the compiler knows, and with one that it does not. */
static int write_some(struct dormouse_relay_chain *chain, size_t offset, const unsigned char *bytes, size_t len)
{
    switch (len) {
    case 1:
        return dormouse_relay_write(chain, offset, bytes, 1);
    case 2:
        return dormouse_relay_write(chain, offset, bytes, 2);
    case 3:
        return dormouse_relay_write(chain, offset, bytes, 3);
    case 4:
        return dormouse_relay_write(chain, offset, bytes, 4);
    case 7:
        return dormouse_relay_write(chain, offset, bytes, 7);
    case 8:
        return dormouse_relay_write(chain, offset, bytes, 8);
    case 24:
        return dormouse_relay_write(chain, offset, bytes, 24);
    case 64:
        return dormouse_relay_write(chain, offset, bytes, 64);
    default:
        return dormouse_relay_write(chain, offset, bytes, len);
    }
}

/* Checks copies of every length and alignment. */
static void check_copies(void)
{
    unsigned char source[400], target[400], expected[400];
    for (size_t index = 0; index < sizeof source; index++)
        source[index] = (unsigned char)(index * 37 + 11);
    for (size_t len = 0; len <= 300; len++)
        for (size_t to = 0; to < 9; to++)
            for (size_t from = 0; from < 9; from++) {
                memset(target, 0xEE, sizeof target);
                memset(expected, 0xEE, sizeof expected);
                memcpy(expected + 8 + to, source + from, len);
                dormouse_i_relay_copy(target + 8 + to, source + from, len);
                assert(memcmp(target, expected, sizeof target) == 0);
            }
}

/* Checks two chains of one budget against two arrays. */
static void check_oracle(size_t page)
{
    static unsigned char held[2][PAGES * 65536], bytes[20000];
    struct dormouse_relay_chain chains[2];
    size_t page_counts[2], promised = 2;
    struct dormouse_relay_budget *budget = dormouse_relay_budget_create(NULL, PAGES * page, page);
    assert(budget != NULL);
    for (int index = 0; index < 2; index++) {
        page_counts[index] = 1;
        assert(dormouse_relay_chain_open(&chains[index], budget, 1, promised) == 0);
        assert(dormouse_relay_read(&chains[index], 0, held[index], page) == 0);
    }
    for (int round = 0; round < 20000; round++) {
        int which = (int)(draw_number() % 2);
        struct dormouse_relay_chain *chain = &chains[which];
        size_t size = page_counts[which] * page;
        assert(dormouse_relay_chain_size_bytes(chain) == size);
        size_t offset = (size_t)(draw_number() % (size + 20)), len = (size_t)(draw_number() % 70);
        if (draw_number() % 4 == 0)
            offset = (size_t)(1 + draw_number() % page_counts[which]) * page - (size_t)(draw_number() % 30);
        if (draw_number() % 50 == 0)
            len = (size_t)(draw_number() % sizeof bytes);
        int fits = offset + len <= size;
        switch (draw_number() % 8) {
        case 0: {
            size_t more = (size_t)(draw_number() % 4), other = page_counts[1 - which];
            size_t kept = other < promised ? promised - other : 0;
            int may = page_counts[which] + more + other + kept <= PAGES;
            assert(dormouse_relay_chain_grow(chain, more) == (may ? 0 : -ENOSPC));
            if (may) {
                page_counts[which] += more;
                assert(dormouse_relay_read(chain, size, held[which] + size, more * page) == 0);
            }
            break;
        }
        case 1: {
            size_t less = (size_t)(draw_number() % 3);
            int may = less < page_counts[which];
            assert(dormouse_relay_chain_shrink(chain, less) == (may ? 0 : -EINVAL));
            page_counts[which] -= may ? less : 0;
            break;
        }
        case 2: {
            size_t crossed = offset % page + len > page;
            unsigned char *there = (unsigned char *)dormouse_relay_address(chain, offset, len);
            if (len > 0)
                assert((there != NULL) == (fits && !crossed));
            if (there != NULL)
                assert(memcmp(there, held[which] + offset, len) == 0);
            break;
        }
        case 3: {
            memset(bytes, 0x5A, len);
            int answer = dormouse_relay_read(chain, offset, bytes, len);
            assert(answer == (fits ? 0 : -ERANGE));
            for (size_t index = 0; index < len; index++)
                assert(bytes[index] == (fits ? held[which][offset + index] : 0x5A));
            break;
        }
        default:
            for (size_t index = 0; index < len; index++)
                bytes[index] = (unsigned char)draw_number();
            assert(write_some(chain, offset, bytes, len) == (fits ? 0 : -ERANGE));
            if (fits)
                memcpy(held[which] + offset, bytes, len);
        }
        if (round % 100 == 0)
            for (int index = 0; index < 2; index++) {
                size_t all = page_counts[index] * page;
                unsigned char *found = (unsigned char *)malloc(all);
                assert(found != NULL && dormouse_relay_read(&chains[index], 0, found, all) == 0);
                assert(memcmp(found, held[index], all) == 0);
                free(found);
            }
        assert(dormouse_relay_budget_free_count(budget) == PAGES - page_counts[0] - page_counts[1]);
    }
    dormouse_relay_chain_close(&chains[0]);
    dormouse_relay_chain_close(&chains[1]);
    assert(dormouse_relay_budget_available_count(budget) == PAGES);
    dormouse_relay_budget_destroy(budget);
}

/* Checks offsets that only grow, and overflow, against an array. */
static void check_wrapping(size_t page_count, size_t offset)
{
    static unsigned char held[PAGES * 4096], bytes[PAGES * 4096 + 1], found[PAGES * 4096 + 1];
    size_t size = page_count * PAGE;
    struct dormouse_relay_chain chain;
    struct dormouse_relay_budget *budget = dormouse_relay_budget_create(NULL, size, PAGE);
    assert(budget != NULL && dormouse_relay_chain_open(&chain, budget, page_count, 0) == 0);
    memset(held, 0, sizeof held);
    for (int round = 0; round < 5000; round++) {
        size_t len = round % 100 == 0 ? size : (size_t)(draw_number() % 70);
        for (size_t index = 0; index < len; index++) {
            bytes[index] = (unsigned char)draw_number();
            held[(offset + index) % size] = bytes[index];
        }
        assert(dormouse_relay_write_wrapping(&chain, offset, bytes, len) == 0);
        assert(dormouse_relay_read_wrapping(&chain, offset, found, len) == 0 && memcmp(found, bytes, len) == 0);
        void *there = dormouse_relay_address_wrapping(&chain, offset, len);
        if (len > 0)
            assert((there != NULL) == (offset % size % PAGE + len <= PAGE));
        if (there != NULL)
            assert(memcmp(there, bytes, len) == 0);
        offset += len;
    }
    assert(dormouse_relay_write_wrapping(&chain, offset, bytes, size + 1) == -ERANGE);
    assert(dormouse_relay_read_wrapping(&chain, offset, found, size + 1) == -ERANGE);
    assert(dormouse_relay_read(&chain, 0, found, size) == 0 && memcmp(found, held, size) == 0);
    dormouse_relay_chain_close(&chain);
    dormouse_relay_budget_destroy(budget);
}

#define NESTED 2000
static struct dormouse_relay_chain shared;
static volatile sig_atomic_t handled;

/* The handler's records are at the end of the buffer, so the cached page is the handler's whenever it returns. */
static void handler(int signal)
{
    (void)signal;
    if (handled < NESTED) {
        uint64_t value = 1000000u + (uint64_t)handled;
        (void)dormouse_relay_write(&shared, 4 * PAGE + 8 * (size_t)handled, &value, sizeof value);
        handled = handled + 1;
    }
}

static void check_signals(void)
{
    struct dormouse_relay_budget *budget = dormouse_relay_budget_create(NULL, 8 * PAGE, PAGE);
    assert(budget != NULL && dormouse_relay_chain_open(&shared, budget, 8, 0) == 0);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    assert(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every;
    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = every.it_value.tv_usec = 50;
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint64_t value = 0;
    while (handled < NESTED / 4) {
        /* 12 bytes, so that some records cross a page's end. */
        for (size_t at = 0; at + 12 <= 4 * PAGE; at += 12) {
            unsigned char record[12];
            value++;
            memcpy(record, &value, 8);
            memset(record + 8, (int)(value & 0xFF), 4);
            assert(dormouse_relay_write(&shared, at, record, sizeof record) == 0);
        }
        uint64_t first = value - 4 * PAGE / 12 + 1;
        for (size_t at = 0; at + 12 <= 4 * PAGE; at += 12, first++) {
            unsigned char found[12];
            uint64_t number;
            assert(dormouse_relay_read(&shared, at, found, sizeof found) == 0);
            memcpy(&number, found, 8);
            assert(number == first && found[11] == (first & 0xFF));
        }
    }
    memset(&every, 0, sizeof every);
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    assert(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    for (size_t index = 0; index < (size_t)handled; index++) {
        uint64_t found = 0;
        assert(dormouse_relay_read(&shared, 4 * PAGE + 8 * index, &found, sizeof found) == 0);
        assert(found == 1000000u + index);
    }
    dormouse_relay_chain_close(&shared);
    dormouse_relay_budget_destroy(budget);
}

static struct dormouse_relay_budget *common;

static void *work(void *argument)
{
    struct dormouse_relay_chain *chain = (struct dormouse_relay_chain *)argument;
    size_t page_count = 1;
    uint64_t stamp = (uint64_t)(uintptr_t)chain;
    for (int round = 0; round < 20000; round++) {
        if (round % 3 != 0 && dormouse_relay_chain_grow(chain, 1) == 0)
            page_count++;
        else if (dormouse_relay_chain_shrink(chain, 1) == 0)
            page_count--;
        for (size_t page = 0; page < page_count; page++)
            assert(dormouse_relay_write(chain, page * PAGE, &stamp, sizeof stamp) == 0);
        for (size_t page = 0; page < page_count; page++) {
            uint64_t found = 0;
            assert(dormouse_relay_read(chain, page * PAGE, &found, sizeof found) == 0 && found == stamp);
        }
    }
    return NULL;
}

static void check_threads(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    struct dormouse_relay_chain chains[THREADS];
    common = dormouse_relay_budget_create(NULL, PAGES * PAGE, PAGE);
    assert(common != NULL);
    for (int index = 0; index < THREADS; index++)
        assert(dormouse_relay_chain_open(&chains[index], common, 1, 2) == 0);
    for (int index = 0; index < THREADS; index++)
        assert(pthread_create(&threads[index], NULL, work, &chains[index]) == 0);
    for (int index = 0; index < THREADS; index++) {
        assert(pthread_join(threads[index], NULL) == 0);
        dormouse_relay_chain_close(&chains[index]);
    }
    assert(dormouse_relay_budget_free_count(common) == PAGES && dormouse_relay_budget_available_count(common) == PAGES);
    dormouse_relay_budget_destroy(common);
}

#if UINTPTR_MAX > 0xffffffffu
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS = 3, ROUNDS = 30000 };

/* The header that this program puts in front of its records. */
struct header {
    uint64_t writer;
    uint64_t sequence;
    uint64_t checksum;
};

static struct dormouse_relay_channel *channel;
static uint64_t lost_count, handled_count, handler_lost_count;
static volatile sig_atomic_t handlers_write;

static struct header header_of(uint64_t writer, uint64_t sequence)
{
    struct header header = { writer, sequence, (writer << 40 ^ sequence) * 0x9E3779B97F4A7C15u };
    return header;
}

static size_t body_of(uint64_t writer, uint64_t sequence, unsigned char *body)
{
    size_t len = (size_t)((writer * 13 + sequence * 7) % 70);
    for (size_t index = 0; index < len; index++)
        body[index] = (unsigned char)(sequence + writer * 3 + index);
    return len;
}

static void write_in_handler(int signal)
{
    (void)signal;
    if (!handlers_write)
        return;
    uint64_t sequence = __atomic_fetch_add(&handled_count, 1, __ATOMIC_RELAXED);
    struct header header = header_of(WRITERS, sequence);
    if (dormouse_relay_channel_write(channel, &header, sizeof header, NULL, 0) != 0)
        __atomic_fetch_add(&handler_lost_count, 1, __ATOMIC_RELAXED);
}

static void *write_records(void *argument)
{
    uint64_t writer = (uint64_t)(uintptr_t)argument;
    for (uint64_t sequence = 0; sequence < ROUNDS; sequence++) {
        unsigned char body[70];
        struct header header = header_of(writer, sequence);
        size_t len = body_of(writer, sequence, body);
        if (sequence % 3 == 0) {
            if (dormouse_relay_channel_write(channel, &header, sizeof header, body, len) != 0)
                __atomic_fetch_add(&lost_count, 1, __ATOMIC_RELAXED);
            continue;
        }
        void *dropped = sequence % 16 == 1 ? dormouse_relay_channel_reserve(channel, 10) : NULL;
        unsigned char *record = (unsigned char *)dormouse_relay_channel_reserve(channel, sizeof header + len);
        if (record != NULL) {
            memcpy(record, &header, sizeof header);
            if (sequence % 64 == 0)
                sched_yield();
            memcpy(record + sizeof header, body, len);
            dormouse_relay_channel_commit(record);
        } else {
            __atomic_fetch_add(&lost_count, 1, __ATOMIC_RELAXED);
        }
        if (dropped != NULL)
            dormouse_relay_channel_cancel(dropped);
    }
    return NULL;
}

/* Takes all pages, checks each record, and returns how many there were. */
static uint64_t read_records(struct dormouse_relay_channel *from, unsigned int flags)
{
    uint64_t read = 0;
    for (uint32_t buffer = 0; buffer < dormouse_relay_channel_buffer_count(from); buffer++) {
        struct dormouse_relay_page page;
        dormouse_relay_channel_flush(from, buffer);
        while (dormouse_relay_channel_take(from, buffer, &page, flags) == 0) {
            uint64_t last[WRITERS] = { 0 }, count = 0;
            const unsigned char *record;
            size_t len;
            while ((record = (const unsigned char *)dormouse_relay_channel_next(from, &page, &len)) != NULL) {
                struct header found, expected;
                unsigned char body[70];
                assert(((uintptr_t)record & 7) == 0 && len >= sizeof found);
                memcpy(&found, record, sizeof found);
                expected = header_of(found.writer, found.sequence);
                assert(memcmp(&found, &expected, sizeof found) == 0);
                if (found.writer < WRITERS) {
                    assert(len == sizeof found + body_of(found.writer, found.sequence, body));
                    assert(memcmp(record + sizeof found, body, len - sizeof found) == 0);
                    assert(found.sequence >= last[found.writer]);
                    last[found.writer] = found.sequence + 1;
                }
                count++;
            }
            assert(count == page.record_count && len == 0);
            assert(page.unfinished_count == 0 || flags == DORMOUSE_RELAY_WRITERS_ENDED);
            read += count;
            dormouse_relay_channel_give_back(from, &page);
        }
    }
    return read;
}

static void check_channel_arguments(void)
{
    struct dormouse_relay_channel_options options;
    struct dormouse_relay_counts counts;
    struct dormouse_relay_page page;
    static const unsigned char bytes[8192] = { 1 };
    volatile size_t huge = SIZE_MAX;
    dormouse_relay_channel_options_init(&options, 2);
    errno = 0;
    assert(dormouse_relay_channel_create(-1, &options) == NULL && errno == EINVAL);
    dormouse_relay_channel_options_init(&options, DORMOUSE_RELAY_DISCARD);
    options.page_size_bytes = 4096;
    options.buffer_count = options.page_count = 1;
    errno = 0;
    assert(dormouse_relay_channel_create(-1, &options) == NULL && errno == EINVAL && "more pages are kept than there are");
    options.kept_page_count = 0;
    errno = 0;
    assert(dormouse_relay_channel_open(-1) == NULL && errno == EBADF);
    dormouse_relay_channel_destroy(NULL);
    channel = dormouse_relay_channel_create(-1, &options);
    assert(channel != NULL && dormouse_relay_channel_buffer_count(channel) == 1);
    assert(dormouse_relay_channel_record_size_max_bytes(channel) == 4088);
    assert(dormouse_relay_channel_flush(channel, 0) == 0 && dormouse_relay_channel_flush(channel, 1) == 0);
    assert(dormouse_relay_channel_take(channel, 0, &page, 0) == -EAGAIN);
    assert(dormouse_relay_channel_take(channel, 1, &page, 0) == -EAGAIN);
    assert(dormouse_relay_channel_take(channel, 0, &page, 3) == -EINVAL);
    assert(dormouse_relay_channel_write(channel, bytes, 4000, bytes, 89) == -1);
    assert(dormouse_relay_channel_write(channel, bytes, 16, bytes, huge) == -1);
    assert(dormouse_relay_channel_reserve(channel, huge) == NULL);
    void *record = dormouse_relay_channel_reserve_in(channel, 7, 4088);
    assert(record != NULL && dormouse_relay_channel_reserve(channel, 0) == NULL);
    assert(dormouse_relay_channel_flush(channel, 0) == 0 && "the record that was lost has closed the page");
    assert(dormouse_relay_channel_take(channel, 0, &page, 0) == -EBUSY);
    assert(dormouse_relay_channel_take(channel, 0, &page, DORMOUSE_RELAY_WRITERS_ENDED) == 0);
    assert(page.number == 1 && page.record_count == 0 && page.unfinished_count == 1);
    dormouse_relay_channel_give_back(channel, &page);
    record = dormouse_relay_channel_reserve(channel, 8);
    assert(record != NULL && dormouse_relay_channel_flush(channel, 0) == 1);
    assert(dormouse_relay_channel_take(channel, 0, &page, DORMOUSE_RELAY_WRITERS_STUCK) == 0 && page.unfinished_count == 1);
    dormouse_relay_channel_give_back(channel, &page);
    assert(dormouse_relay_channel_reserve(channel, 8) == NULL && "the page is never used again");
    assert(dormouse_relay_channel_counts(channel, 0, &counts) == 0);
    assert(counts.lost_full == 2 && counts.lost_big == 3 && counts.overwritten == 0);
    assert(dormouse_relay_channel_counts(channel, 1, &counts) == -EINVAL);
    dormouse_relay_channel_destroy(channel);
}

/* Threads write, also in a signal handler, while this one takes pages: every record is read, lost or overwritten. */
static void check_channel_threads(unsigned int mode)
{
    struct dormouse_relay_channel_options options;
    dormouse_relay_channel_options_init(&options, mode);
    options.page_size_bytes = 4096;
    options.buffer_count = 2;
    options.page_count = 8;
    options.kept_page_count = mode == DORMOUSE_RELAY_DISCARD ? 1 : 0;
    channel = dormouse_relay_channel_create(-1, &options);
    assert(channel != NULL);
    lost_count = handled_count = handler_lost_count = 0;
    handlers_write = 1;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = write_in_handler;
    action.sa_flags = SA_RESTART;
    assert(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every;
    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = every.it_value.tv_usec = 50;
    pthread_t threads[WRITERS];
    for (uintptr_t index = 0; index < WRITERS; index++)
        assert(pthread_create(&threads[index], NULL, write_records, (void *)index) == 0);
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    uint64_t read = 0;
    for (int round = 0; round < 200; round++)
        read += read_records(channel, 0);
    for (int index = 0; index < WRITERS; index++)
        assert(pthread_join(threads[index], NULL) == 0);
    handlers_write = 0;
    memset(&every, 0, sizeof every);
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    read += read_records(channel, 0);
    uint64_t full = 0, overwritten = 0;
    for (uint32_t buffer = 0; buffer < 2; buffer++) {
        struct dormouse_relay_counts counts;
        assert(dormouse_relay_channel_counts(channel, buffer, &counts) == 0 && counts.lost_big == 0);
        full += counts.lost_full;
        overwritten += counts.overwritten;
    }
    assert(mode == DORMOUSE_RELAY_OVERWRITE || overwritten == 0);
    /* A record that is cancelled may be lost too, which is counted here and not by its writer. */
    assert(full >= lost_count + handler_lost_count);
    assert(read + overwritten + lost_count + handler_lost_count == (uint64_t)WRITERS * ROUNDS + handled_count);
    dormouse_relay_channel_destroy(channel);
}

/* A process writes and is killed; this one opens the file and reads. */
static void check_channel_processes(void)
{
    char path[] = "/tmp/dormouse-relay-XXXXXX";
    int file = mkstemp(path), ready[2];
    assert(file >= 0 && unlink(path) == 0 && pipe(ready) == 0);
    errno = 0;
    assert(dormouse_relay_channel_open(file) == NULL && errno == EBADMSG);
    pid_t child = fork();
    assert(child >= 0);
    if (child == 0) {
        struct dormouse_relay_channel_options options;
        dormouse_relay_channel_options_init(&options, DORMOUSE_RELAY_DISCARD);
        channel = dormouse_relay_channel_create(file, &options);
        assert(channel != NULL);
        for (uint64_t sequence = 0; sequence < 100; sequence++) {
            unsigned char body[70];
            struct header header = header_of(0, sequence);
            assert(dormouse_relay_channel_write(channel, &header, sizeof header, body, body_of(0, sequence, body)) == 0);
        }
        assert(dormouse_relay_channel_reserve(channel, 100) != NULL && write(ready[1], "!", 1) == 1);
        for (;;)
            pause();
    }
    char byte;
    assert(read(ready[0], &byte, 1) == 1 && kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    struct dormouse_relay_channel *found = dormouse_relay_channel_open(file);
    assert(found != NULL && read_records(found, DORMOUSE_RELAY_WRITERS_ENDED) == 100);
    dormouse_relay_channel_destroy(found);
    close(file);
    close(ready[0]);
    close(ready[1]);
}
#endif

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "layout") == 0) {
        printf("caches %zu\n", offsetof(struct dormouse_relay_chain, dormouse_i_written));
        printf("page_size_bytes %zu\n", offsetof(struct dormouse_relay_chain, dormouse_i_page_size_bytes));
        printf("size_bytes %zu\n", offsetof(struct dormouse_relay_chain, dormouse_i_size_bytes));
        printf("link.offset %zu\n", offsetof(struct dormouse_i_relay_link, offset));
        printf("link.data %zu\n", offsetof(struct dormouse_i_relay_link, data));
        printf("size %zu\n", sizeof(struct dormouse_relay_chain));
        printf("pages %d %d\n", DORMOUSE_RELAY_PAGE_SIZE_BYTES_MIN, DORMOUSE_RELAY_PAGE_SIZE_BYTES_MAX);
        return 0;
    }
    check_arguments();
    check_copies();
    check_oracle(4096);
    check_oracle(65536);
    check_wrapping(1, 0);
    check_wrapping(8, SIZE_MAX - 50000);
    check_wrapping(5, 3);
    check_signals();
    check_threads();
#if UINTPTR_MAX > 0xffffffffu
    check_channel_arguments();
    check_channel_threads(DORMOUSE_RELAY_DISCARD);
    check_channel_threads(DORMOUSE_RELAY_OVERWRITE);
    check_channel_processes();
#endif
    puts("fine");
    return 0;
}
