/* Pools: errors, operations and lists under migration and signals, shared memory, fork. C11 and C++11. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/percpu.h>

#include "without.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define ITEMS 64
#define RECORDS 16
#define OS_PAGE ((size_t)sysconf(_SC_PAGESIZE))

/* Each CPU's copy of the object. The list and other members are also tested at offsets other than 0. */
struct copy {
    uint64_t added;
    uint64_t compared;
    uint64_t stored;
    struct dormouse_percpu_list list;
    uint64_t count;
    uint64_t records[RECORDS][3];
};

struct item {
    struct dormouse_percpu_node node;
    int is_out;
};

static int has_rseq = 1;
static int rounds = 5000;

static struct dormouse_percpu_pool *pool;
static struct dormouse_percpu_object object;
/* Items, in private memory or shared with children. */
static struct item *items;
static uint64_t added, compared, copied, failures;
static volatile sig_atomic_t handled;
static int is_over;
static pid_t tids[THREADS];

static uint64_t count_of(uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void plus(uint64_t *word, uint64_t n)
{
    __atomic_fetch_add(word, n, __ATOMIC_RELAXED);
}

static struct dormouse_percpu_pool_options options_of(unsigned flags)
{
    struct dormouse_percpu_pool_options options;
    memset(&options, 0, sizeof options);
    options.flags = flags;
    options.stride_bytes = 2 * OS_PAGE;
    return options;
}

/* Calls `expect` below with the error in `error`. */
#define EXPECT(result, number, cause, text) expect(result, &error, number, DORMOUSE_PERCPU_##cause, text)

/* Asserts that the error has this number and cause, and that its text contains `text`. */
static void expect(int result, const struct dormouse_percpu_error *error, int number, enum dormouse_percpu_cause cause,
                   const char *text)
{
    if (result != -number || error->error != number || error->cause != (uint32_t)cause || !strstr(error->text, text)) {
        fprintf(stderr, "%d %d %u \"%s\", not %d %d \"%s\"\n", result, error->error, error->cause, error->text, number,
                (int)cause, text);
        abort();
    }
}

static void refused(struct dormouse_percpu_pool_options options, enum dormouse_percpu_cause cause, int number, const char *text)
{
    struct dormouse_percpu_error error;
    memset(&error, 0, sizeof error);
    errno = 0;
    assert(dormouse_percpu_pool_create(&options, &error) == NULL);
    expect(-errno, &error, number, cause, text);
    errno = 0;
    assert(dormouse_percpu_pool_create(&options, NULL) == NULL && errno == number);
}

static void check_options(void)
{
    refused(options_of(4), DORMOUSE_PERCPU_BAD_OPTION, EINVAL, "flags is 4, but must be between 0 and 3");
    struct dormouse_percpu_pool_options options = options_of(0);
    options.cpu_count = 1 << 20;
    refused(options, DORMOUSE_PERCPU_BAD_OPTION, EINVAL, "cpu_count is 1048576");
    options = options_of(0);
    char text[128];
    options.stride_bytes = 3 * OS_PAGE;
    snprintf(text, sizeof text, "stride_bytes is %zu, but must be a power of two", options.stride_bytes);
    refused(options, DORMOUSE_PERCPU_BAD_OPTION, EINVAL, text);
    options = options_of(0);
    options.limit_bytes = OS_PAGE;
    options.cpu_count = 2;
    snprintf(text, sizeof text, "no memory for the pool: %zu bytes more would pass the limit of %zu", 4 * OS_PAGE, OS_PAGE);
    refused(options, DORMOUSE_PERCPU_LIMIT, ENOSPC, text);
    options = options_of(DORMOUSE_PERCPU_LAZY);
    options.cpu_count = 1 << 10;
    options.stride_bytes = (size_t)1 << 40;
    refused(options, DORMOUSE_PERCPU_REFUSED, ENOMEM, "the kernel refuses");
}

static void inside(void *argument)
{
    struct dormouse_percpu_error error;
    struct dormouse_percpu_object other;
    struct dormouse_percpu_pool *held = (struct dormouse_percpu_pool *)argument;
    EXPECT(dormouse_percpu_pool_alloc(held, 8, 8, &other, &error), EDEADLK, REENTERED, "signal handler");
    EXPECT(dormouse_percpu_pool_free(held, object, &error), EDEADLK, REENTERED, "signal handler");
    EXPECT(dormouse_percpu_pool_audit(held, &error), EDEADLK, REENTERED, "signal handler");
    assert(dormouse_percpu_pool_hold(held, inside, held) == -EDEADLK);
    handled = handled + 1;
}

static void check_errors(unsigned flags)
{
    struct dormouse_percpu_pool_options options = options_of(flags);
    struct dormouse_percpu_error error;
    struct dormouse_percpu_object first, second, other;
    options.cpu_count = 2;
    options.limit_bytes = 8 * OS_PAGE;
    struct dormouse_percpu_pool *some = dormouse_percpu_pool_create(&options, &error);
    struct dormouse_percpu_pool *another = dormouse_percpu_pool_create(&options, NULL);
    assert(some != NULL && another != NULL && dormouse_percpu_pool_cpu_count(some) == 2);

    /* Objects that cannot be allocated. */
    errno = 7;
    struct dormouse_percpu_usage usage;
    assert(dormouse_percpu_pool_usage(some, &usage) == 0 && dormouse_percpu_pool_usage(some, NULL) == -EINVAL);
    assert(usage.chunk_count == 1 && usage.object_count == 0 && usage.align_bytes_max == 4096 && usage.size_bytes_max <= 4096);
    EXPECT(dormouse_percpu_pool_alloc(some, usage.size_bytes_max + 1, 8, &first, &error), E2BIG, TOO_BIG, "does not fit");
    EXPECT(dormouse_percpu_pool_alloc(some, SIZE_MAX, 8, &first, &error), E2BIG, TOO_BIG, "does not fit");
    EXPECT(dormouse_percpu_pool_alloc(some, 8, 8192, &first, &error), EINVAL, BAD_ALIGNMENT,
           "alignment to 8192 bytes cannot be met: this pool aligns to at most 4096");
    const size_t odd[] = { 0, 3, 24 };
    for (size_t index = 0; index < sizeof odd / sizeof *odd; index++)
        EXPECT(dormouse_percpu_pool_alloc(some, 8, odd[index], &first, &error), EINVAL, BAD_ALIGNMENT, "not a power of two");
    EXPECT(dormouse_percpu_pool_alloc(some, 8, 8, NULL, &error), EINVAL, BAD_OPTION, "no place");

    /* Allocates until the pool is full; freed memory can be allocated again. */
    int count = 0;
    int result = 0;
    while ((result = dormouse_percpu_pool_alloc(some, 1024, 8, &other, &error)) == 0) {
        if (count == 0)
            first = other;
        second = other;
        count++;
    }
    char text[128];
    snprintf(text, sizeof text, "no room for 1024 bytes per CPU, aligned to 8: %zu bytes more would pass the limit of %zu",
             4 * OS_PAGE, 8 * OS_PAGE);
    EXPECT(result, ENOSPC, LIMIT, text);
    assert(count >= 2);
    struct dormouse_percpu_leak leaks[2];
    assert(dormouse_percpu_pool_leaks(some, leaks, 2) == 1 && leaks[0].size_bytes == 1024 && leaks[0].count == (size_t)count);
    assert(dormouse_percpu_pool_leaks(some, NULL, 0) == 1 && dormouse_percpu_pool_leaks(some, NULL, 1) == -EINVAL);

    /* Words that are not an object, or not any more. */
    assert(dormouse_percpu_pool_size_of(some, first) == 1024);
    assert(dormouse_percpu_pool_free(some, first, &error) == 0);
    assert(dormouse_percpu_pool_size_of(some, first) == -ENOENT && dormouse_percpu_pool_offset_of(some, first) == -ENOENT);
    EXPECT(dormouse_percpu_pool_free(some, first, &error), EALREADY, DOUBLE_FREE, "has been freed before");
    EXPECT(dormouse_percpu_pool_free(another, second, &error), ENOENT, FOREIGN, "no object of this pool");
    other = second;
    other.word = (char *)other.word + 8;
    EXPECT(dormouse_percpu_pool_free(some, other, &error), ENOENT, FOREIGN, "no object of this pool");
    other.word = &other;
    EXPECT(dormouse_percpu_pool_free(some, other, &error), ENOENT, FOREIGN, "no object of this pool");
    other.word = NULL;
    EXPECT(dormouse_percpu_pool_free(some, other, &error), ENOENT, FOREIGN, "no object");
    assert(dormouse_percpu_pool_free(some, other, NULL) == -ENOENT && dormouse_percpu_pool_size_of(some, other) == -ENOENT);
    assert(dormouse_percpu_pool_address(some, second, 1) != NULL && dormouse_percpu_pool_address(some, second, 2) == NULL);
    assert(dormouse_percpu_pool_alloc(some, 1000, 8, &first, NULL) == 0 && dormouse_percpu_pool_audit(some, &error) == 0);

    /* A signal handler that interrupts the pool. */
    handled = 0;
    object = first;
    assert(dormouse_percpu_pool_hold(some, inside, some) == 0 && handled == 1);
    assert(dormouse_percpu_pool_hold(some, NULL, NULL) == -EINVAL);

    /* Bytes after an object, and bytes of a freed object. */
    if (flags & DORMOUSE_PERCPU_ROBUST) {
        ((unsigned char *)dormouse_percpu_pool_address(some, first, 1))[1000] ^= 0xff;
        EXPECT(dormouse_percpu_pool_audit(some, &error), EUCLEAN, CORRUPTED, "red zone");
        EXPECT(dormouse_percpu_pool_free(some, first, &error), EUCLEAN, CORRUPTED, "of CPU 1");
        assert(dormouse_percpu_pool_usage(some, &usage) == 0 && usage.withdrawn_bytes > 0);
        unsigned char *freed = (unsigned char *)dormouse_percpu_pool_address(some, second, 0);
        assert(dormouse_percpu_pool_free(some, second, NULL) == 0);
        freed[3] ^= 0xff;
        EXPECT(dormouse_percpu_pool_audit(some, &error), EUCLEAN, CORRUPTED, "free memory");
        EXPECT(dormouse_percpu_pool_alloc(some, 1024, 8, &other, &error), EUCLEAN, CORRUPTED, "free memory");
        assert(dormouse_percpu_pool_audit(some, NULL) == 0);
    }
    assert(errno == 7);
    dormouse_percpu_pool_destroy(some);
    dormouse_percpu_pool_destroy(another);
}

/* Appends three words with the same number. */
static int append(uint64_t unique)
{
    const uint64_t record[3] = { unique, unique, unique };
    uint64_t count = 0;
    if (dormouse_percpu_load(pool, object, offsetof(struct copy, count), &count) != 0)
        return -1;
    struct dormouse_percpu_copy copy;
    copy.guard_offset = copy.last_offset = offsetof(struct copy, count);
    copy.expected = count;
    copy.to_offset = offsetof(struct copy, records) + (count % RECORDS) * sizeof record;
    copy.from = record;
    copy.size_bytes = sizeof record;
    copy.value = count + 1;
    return dormouse_percpu_copy_and_store(pool, object, &copy);
}

/* Performs each operation once. Async-signal-safe. */
static void step(uint64_t unique)
{
    if (dormouse_percpu_add(pool, object, offsetof(struct copy, added), 3) == 0)
        plus(&added, 3);
    else
        plus(&failures, 1);
    uint64_t before = 0;
    if (dormouse_percpu_load(pool, object, offsetof(struct copy, compared), &before) != 0)
        plus(&failures, 1);
    int result = dormouse_percpu_compare_and_store(pool, object, offsetof(struct copy, compared), before, before + 1);
    if (result == 0)
        plus(&compared, 1);
    else if (result != 1)
        plus(&failures, 1);
    if (dormouse_percpu_store(pool, object, offsetof(struct copy, stored), unique) != 0)
        plus(&failures, 1);
    result = append(unique);
    if (result == 0)
        plus(&copied, 1);
    else if (result != 1)
        plus(&failures, 1);
    struct dormouse_percpu_node *node = dormouse_percpu_list_pop(pool, object, offsetof(struct copy, list));
    if (node != NULL) {
        struct item *item = (struct item *)(void *)node;
        if (__atomic_exchange_n(&item->is_out, 1, __ATOMIC_RELAXED) != 0)
            plus(&failures, 1);
        /* A thread that still followed the pointer would crash. */
        node->next = (void *)(uintptr_t)0xDEADBEEF;
        __atomic_store_n(&item->is_out, 0, __ATOMIC_RELAXED);
        dormouse_percpu_list_push(pool, object, offsetof(struct copy, list), node);
    }
}

static void handler(int signal)
{
    (void)signal;
    int before = errno;
    handled = handled + 1;
    step(1 + (uint64_t)handled);
    errno = before;
}

static void *work(void *argument)
{
    int index = (int)(intptr_t)argument;
    __atomic_store_n(&tids[index], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    errno = 7;
    for (int round = 0; round < rounds; round++)
        step((uint64_t)(round * THREADS + index) + 1);
    assert(errno == 7);
    __atomic_store_n(&tids[index], 0, __ATOMIC_RELEASE);
    /* Blocks the signal: its handler could interrupt a thread that is ending and has no restartable sequences. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGALRM);
    assert(pthread_sigmask(SIG_BLOCK, &signals, NULL) == 0);
    return NULL;
}

/* Moves the workers between the CPUs that this process may run on. */
static void *migrate(void *argument)
{
    cpu_set_t *allowed = (cpu_set_t *)argument;
    for (int turn = 0; !__atomic_load_n(&is_over, __ATOMIC_ACQUIRE); turn++) {
        int cpu = turn % CPU_SETSIZE;
        if (!CPU_ISSET(cpu, allowed))
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        for (int index = 0; index < THREADS; index++) {
            pid_t tid = __atomic_load_n(&tids[(turn + index) % THREADS], __ATOMIC_ACQUIRE);
            if (tid != 0 && index % 2 == turn % 2)
                sched_setaffinity(tid, sizeof one, &one);
        }
        sched_yield();
    }
    return NULL;
}

static void take(struct dormouse_percpu_node *node, void *argument)
{
    struct item *item = (struct item *)(void *)node;
    assert(item >= items && item < items + ITEMS && item->is_out == 0);
    item->is_out = 2;
    ++*(int *)argument;
}

static uint64_t sum(size_t offset)
{
    uint64_t total = 0;
    for (uint32_t cpu = 0; cpu < dormouse_percpu_pool_cpu_count(pool); cpu++)
        total += count_of((uint64_t *)(void *)((char *)dormouse_percpu_pool_address(pool, object, cpu) + offset));
    return total;
}

/* Checks that nothing is lost or counted twice. */
static void check_whole(void)
{
    assert(failures == 0);
    assert(sum(offsetof(struct copy, added)) == added && added > 0);
    assert(sum(offsetof(struct copy, compared)) == compared && compared > 0);
    assert(sum(offsetof(struct copy, count)) == copied && copied > 0);
    for (uint32_t cpu = 0; cpu < dormouse_percpu_pool_cpu_count(pool); cpu++) {
        struct copy *copy = (struct copy *)dormouse_percpu_pool_address(pool, object, cpu);
        /* An interrupted attempt may have left bytes in the next record's place, so that one is not checked. */
        for (uint64_t back = 1; back < RECORDS && back <= copy->count; back++) {
            const uint64_t *record = copy->records[(copy->count - back) % RECORDS];
            assert(record[0] != 0 && record[0] == record[1] && record[1] == record[2]);
        }
    }
    int count = 0;
    dormouse_percpu_list_drain(pool, object, offsetof(struct copy, list), take, &count);
    assert(count == ITEMS);
    assert(dormouse_percpu_list_pop(pool, object, offsetof(struct copy, list)) == NULL);
}

static void begin(int flags)
{
    items = (struct item *)mmap(NULL, ITEMS * sizeof *items, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    assert(items != MAP_FAILED);
    added = compared = copied = failures = 0;
    assert(dormouse_percpu_pool_alloc(pool, sizeof(struct copy), 8, &object, NULL) == 0);
    for (int index = 0; index < ITEMS; index++)
        dormouse_percpu_list_push(pool, object, offsetof(struct copy, list), &items[index].node);
}

static void check_operations(unsigned flags)
{
    struct dormouse_percpu_pool_options options = options_of(flags);
    pool = dormouse_percpu_pool_create(&options, NULL);
    assert(pool != NULL);
    begin(MAP_PRIVATE);

    cpu_set_t allowed;
    assert(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    pthread_t threads[THREADS], mover;
    is_over = 0;
    for (intptr_t index = 0; index < THREADS; index++)
        assert(pthread_create(&threads[index], NULL, work, (void *)index) == 0);
    assert(pthread_create(&mover, NULL, migrate, &allowed) == 0);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    assert(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every;
    memset(&every, 0, sizeof every);
    every.it_interval.tv_usec = every.it_value.tv_usec = 100;
    handled = 0;
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    /* All signals may be delivered to this thread, so it performs operations as well. */
    for (uint64_t round = 1; handled < 20; round++)
        step(round);
    for (int index = 0; index < THREADS; index++)
        assert(pthread_join(threads[index], NULL) == 0);
    memset(&every, 0, sizeof every);
    assert(setitimer(ITIMER_REAL, &every, NULL) == 0);
    /* One more signal may arrive: it is counted by all or by none, before it is ignored. */
    assert(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    assert(pthread_join(mover, NULL) == 0);
    check_whole();

    /* Invalid arguments. */
    uint64_t value = 5;
    struct dormouse_percpu_object none;
    none.word = NULL;
    assert(dormouse_percpu_add(pool, object, 4, 1) == -EINVAL && dormouse_percpu_add(pool, none, 0, 1) == -EINVAL);
    assert(dormouse_percpu_load(pool, object, 0, NULL) == -EINVAL && dormouse_percpu_load(pool, object, 1, &value) == -EINVAL);
    assert(dormouse_percpu_store(pool, object, 7, 1) == -EINVAL && value == 5);
    assert(dormouse_percpu_compare_and_store(pool, object, 2, 0, 1) == -EINVAL);
    assert(dormouse_percpu_copy_and_store(pool, object, NULL) == -EINVAL);
    assert(dormouse_percpu_pool_free(pool, object, NULL) == 0 && dormouse_percpu_pool_audit(pool, NULL) == 0);
    assert(dormouse_percpu_pool_leaks(pool, NULL, 0) == 0);
    dormouse_percpu_pool_destroy(pool);
}

/* A pool that was made for fewer CPUs than there are. */
static void check_too_few(void)
{
    cpu_set_t before, last;
    assert(sched_getaffinity(0, sizeof before, &before) == 0);
    int cpu = CPU_SETSIZE - 1;
    while (cpu > 0 && !CPU_ISSET(cpu, &before))
        cpu--;
    if (cpu == 0)
        return;
    CPU_ZERO(&last);
    CPU_SET(cpu, &last);
    struct dormouse_percpu_pool_options options = options_of(0);
    options.cpu_count = (uint32_t)cpu;
    pool = dormouse_percpu_pool_create(&options, NULL);
    begin(MAP_PRIVATE);
    assert(sched_setaffinity(0, sizeof last, &last) == 0);
    uint64_t value = 0;
    assert(dormouse_percpu_add(pool, object, 0, 1) == -ERANGE && dormouse_percpu_load(pool, object, 0, &value) == -ERANGE);
    assert(dormouse_percpu_store(pool, object, 0, 1) == -ERANGE && append(1) == -1);
    assert(dormouse_percpu_compare_and_store(pool, object, 0, 0, 1) == -ERANGE);
    assert(sum(0) == 0);
    /* List operations work on every CPU. */
    struct item extra;
    memset(&extra, 0, sizeof extra);
    dormouse_percpu_list_push(pool, object, offsetof(struct copy, list), &extra.node);
    assert(dormouse_percpu_list_pop(pool, object, offsetof(struct copy, list)) == &extra.node);
    assert(sched_setaffinity(0, sizeof before, &before) == 0);
    dormouse_percpu_pool_destroy(pool);
}

static void fork_inside(void *argument)
{
    *(pid_t *)argument = fork();
}

static void *allocate(void *argument)
{
    struct dormouse_percpu_object mine;
    (void)argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_ACQUIRE)) {
        assert(dormouse_percpu_pool_alloc(pool, 200, 8, &mine, NULL) == 0);
        assert(dormouse_percpu_pool_free(pool, mine, NULL) == 0);
    }
    return NULL;
}

static int ended_well(pid_t child)
{
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A child's pool is its own, even if it was forked while other threads allocate. */
static void check_fork(void)
{
    struct dormouse_percpu_pool_options options = options_of(DORMOUSE_PERCPU_ROBUST);
    struct dormouse_percpu_object mine;
    pool = dormouse_percpu_pool_create(&options, NULL);
    begin(MAP_PRIVATE);
    pthread_t thread;
    is_over = 0;
    assert(pthread_create(&thread, NULL, allocate, NULL) == 0);
    for (int round = 0; round < 4; round++) {
        pid_t child = -1;
        assert(dormouse_percpu_pool_hold(pool, fork_inside, &child) == 0 && child >= 0);
        if (child == 0) {
            for (uint64_t turn = 1; turn <= 100; turn++)
                step(turn);
            int is_well = sum(offsetof(struct copy, added)) == 300 && failures == 0 &&
                          dormouse_percpu_pool_alloc(pool, 200, 8, &mine, NULL) == 0 &&
                          dormouse_percpu_pool_free(pool, mine, NULL) == 0 &&
                                 dormouse_percpu_pool_free(pool, object, NULL) == 0;
            _exit(is_well ? 0 : 1);
        }
        assert(ended_well(child));
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_RELEASE);
    assert(pthread_join(thread, NULL) == 0);
    assert(sum(offsetof(struct copy, added)) == 0);
    dormouse_percpu_pool_destroy(pool);
}

/* Memory that is mapped twice, and shared with a child. */
static void check_region(void)
{
    struct dormouse_percpu_pool_options options = options_of(0);
    struct dormouse_percpu_pool *counting = dormouse_percpu_pool_create(NULL, NULL);
    uint32_t cpu_count = dormouse_percpu_pool_cpu_count(counting);
    assert(dormouse_percpu_pool_alloc(counting, 8, 8, &object, NULL) == 0);
    assert(dormouse_percpu_pool_offset_of(counting, object) == -ENOTSUP);
    assert(dormouse_percpu_pool_object_at(counting, 0, &object) == -ENOENT);
    dormouse_percpu_pool_destroy(counting);

    size_t size_bytes = cpu_count * options.stride_bytes;
    int file = memfd_create("pool", MFD_CLOEXEC);
    assert(file >= 0 && ftruncate(file, (off_t)size_bytes) == 0);
    char *here = (char *)mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *there = (char *)mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert(here != MAP_FAILED && there != MAP_FAILED && close(file) == 0);

    struct dormouse_percpu_error error;
    errno = 0;
    assert(dormouse_percpu_pool_create_in_region(here, OS_PAGE, &options, &error) == NULL);
    char text[64];
    snprintf(text, sizeof text, "region.size_bytes is %zu", OS_PAGE);
    EXPECT(-errno, EINVAL, BAD_OPTION, text);
    assert(dormouse_percpu_pool_create_in_region(NULL, size_bytes, &options, &error) == NULL);
    EXPECT(-errno, EINVAL, BAD_OPTION, "region.base is 0");
    pool = dormouse_percpu_pool_create_in_region(here, size_bytes, &options, &error);
    assert(pool != NULL);
    begin(MAP_SHARED);
    ptrdiff_t offset = dormouse_percpu_pool_offset_of(pool, object);
    struct dormouse_percpu_object same;
    assert(offset >= 0 && dormouse_percpu_pool_object_at(pool, (size_t)offset, &same) == 0 && same.word == object.word);
    assert(dormouse_percpu_pool_object_at(pool, (size_t)offset, NULL) == -EINVAL);
    assert(dormouse_percpu_pool_object_at(pool, (size_t)offset + 64, &same) == -ENOENT);
    struct dormouse_percpu_object more;
    int result = 0;
    while (result == 0)
        result = dormouse_percpu_pool_alloc(pool, 1024, 8, &more, &error);
    EXPECT(result, ENOSPC, FIXED, "no room for 1024 bytes per CPU, aligned to 8: the pool's ");

    errno = 0;
    struct dormouse_percpu_pool *attached = dormouse_percpu_pool_attach(there, size_bytes, &options, &error);
    assert(attached != NULL && dormouse_percpu_pool_cpu_count(attached) == cpu_count);
    assert(dormouse_percpu_pool_object_at(attached, (size_t)offset, &same) == 0);
    assert(dormouse_percpu_pool_object_at(attached, size_bytes, &same) == -ENOENT);
    for (uint32_t cpu = 0; cpu < cpu_count; cpu++)
        assert((char *)dormouse_percpu_pool_address(attached, same, cpu) - there ==
               (char *)dormouse_percpu_pool_address(pool, object, cpu) - here);
    struct dormouse_percpu_usage usage;
    EXPECT(dormouse_percpu_pool_alloc(attached, 8, 8, &more, &error), EPERM, ATTACHED, "attached");
    EXPECT(dormouse_percpu_pool_free(attached, same, &error), EPERM, ATTACHED, "attached");
    EXPECT(dormouse_percpu_pool_audit(attached, &error), EPERM, ATTACHED, "attached");
    assert(dormouse_percpu_pool_usage(attached, &usage) == -EPERM &&
           dormouse_percpu_pool_leaks(attached, NULL, 0) == -EPERM);
    assert(dormouse_percpu_pool_size_of(attached, same) == -EPERM &&
           dormouse_percpu_pool_offset_of(attached, same) == -EPERM);
    assert(dormouse_percpu_pool_hold(attached, inside, NULL) == -EPERM);
    if (has_rseq) {
        assert(dormouse_percpu_add(attached, same, 0, 3) == 0);
        plus(&added, 3);
    }

    if (!has_rseq) {
        uint64_t value = 0;
        assert(dormouse_percpu_add(pool, object, 0, 1) == -ENOTSUP &&
               dormouse_percpu_load(pool, object, 0, &value) == -ENOTSUP);
        assert(dormouse_percpu_store(pool, object, 0, 1) == -ENOTSUP && append(1) == -1);
        assert(dormouse_percpu_compare_and_store(pool, object, 0, 0, 1) == -ENOTSUP && sum(0) == 0);
    } else {
        pid_t child = fork();
        assert(child >= 0);
        for (uint64_t turn = 1; turn <= 2000; turn++)
            step(turn);
        if (child == 0) {
            /* The sums of both processes are in shared memory; each process knows only its own counts. */
            assert(failures == 0 && append(1) >= 0);
            _exit(compared > 0 && copied > 0 ? 0 : 1);
        }
        assert(ended_well(child));
        assert(failures == 0 && sum(offsetof(struct copy, added)) == added + 2000 * 3);
    }
    int count = 0;
    dormouse_percpu_list_drain(pool, object, offsetof(struct copy, list), take, &count);
    assert(count == ITEMS);
    dormouse_percpu_pool_destroy(attached);
    dormouse_percpu_pool_destroy(pool);
    assert(munmap(here, size_bytes) == 0 && munmap(there, size_bytes) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "without") == 0)
        without_rseq(argv[0]);
    if (argc > 1 && strcmp(argv[1], "refused") == 0) {
        has_rseq = 0;
        rounds = 500;
    }
    /* Sizes in the library. */
    assert(sizeof(struct dormouse_percpu_node) == 8 && sizeof(struct dormouse_percpu_list) == 24);
    assert(sizeof(struct dormouse_percpu_object) == 8 && sizeof(struct dormouse_percpu_pool_options) == 24);
    assert(sizeof(struct dormouse_percpu_error) == 256 && sizeof(struct dormouse_percpu_leak) == 16);
    assert(sizeof(struct dormouse_percpu_usage) == 56 && sizeof(struct dormouse_percpu_copy) == 56);
    check_options();
    for (unsigned flags = 0; flags < 4; flags++) {
        check_errors(flags);
        check_operations(flags);
    }
    check_too_few();
    check_fork();
    check_region();
    dormouse_percpu_pool_destroy(NULL);
    /* Destruction frees the memory: otherwise the loop would need many times the address space. */
    struct dormouse_percpu_pool_options options = options_of(DORMOUSE_PERCPU_LAZY);
    options.stride_bytes = (size_t)1 << 36;
    options.cpu_count = 64;
    for (int round = 0; round < 100; round++) {
        pool = dormouse_percpu_pool_create(&options, NULL);
        if (pool == NULL)
            break;
        dormouse_percpu_pool_destroy(pool);
    }
    puts("fine");
    return 0;
}
