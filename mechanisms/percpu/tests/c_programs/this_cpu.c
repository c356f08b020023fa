/* Per-CPU variables, by threads and signal handlers, in a program and a library. C11 and C++11. Every sum has to be what
 * the threads say that they added. Compiled once with inline sections and once with calls; both run in one process. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/this_cpu.h>

#include "without.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "this_cpu.h"

struct stats {
    char name[3];
    uint32_t small;
    uint64_t large;
    int32_t down;
    uint32_t neighbour; /* in the same eight bytes as `down` */
    void *last;
};

DEFINE_PER_CPU(struct stats, stats);
DEFINE_PER_CPU(uint64_t, initial) = 41;
DEFINE_STATIC_PER_CPU(uint32_t, steps[3]);
DEFINE_PER_CPU(struct dormouse_percpu_list, list);
DEFINE_PER_CPU(uint64_t, by_handler);

struct node {
    struct dormouse_percpu_node node;
    uint64_t number;
};

static const struct dormouse_percpu_area *by_id;
static uint64_t handled;

static void handler(int signal)
{
    (void)signal;
    /* Two threads may handle signals at the same time. */
    __atomic_add_fetch(&handled, 1, __ATOMIC_RELAXED);
    this_cpu_inc(by_handler);
    this_cpu_add(stats.large, 1);
}

static void *work(void *argument)
{
    struct ledger *ledger = (struct ledger *)argument;
    struct node *nodes = (struct node *)calloc(16, sizeof *nodes);
    uint64_t *word = (uint64_t *)(void *)by_id->first;
    assert(nodes != NULL);
    for (uint64_t number = 0; number < 16; number++) {
        nodes[number].number = 1;
        this_cpu_push(list, &nodes[number].node);
    }
    ledger->nodes = 16;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        assert(this_cpu_inc(stats.small) == 0);
        assert(this_cpu_add(stats.large, round) == 0);
        ledger->large += round;
        assert(this_cpu_dec(stats.down) == 0);
        assert(this_cpu_sub(stats.neighbour, 3) == 0);
        this_cpu_add_return(steps[round % 3], 2);
        /* A value that only grows, though it is read and written apart. */
        uint64_t seen = this_cpu_read(initial);
        ledger->steps += this_cpu_cmpxchg(initial, seen, seen + 1) == seen;
        assert(percpu_add(by_id, word, 1) == 0);
        struct dormouse_percpu_node *node = this_cpu_pop(list);
        if (node != NULL) {
            ((struct node *)(void *)node)->number++;
            ledger->popped++;
            this_cpu_push(list, node);
        }
        if (round % 64 == 0) {
            assert(this_cpu_write(stats.last, (void *)ledger) == 0);
            void *last = this_cpu_xchg(stats.last, NULL);
            assert(last == NULL || ((struct ledger *)last)->magic == MAGIC);
            work_by_calls(ledger);
            work_in_library(ledger);
        }
    }
    return NULL;
}

struct sums {
    uint64_t nodes, numbers;
};

static void take(struct dormouse_percpu_node *node, void *argument)
{
    struct sums *sums = (struct sums *)argument;
    sums->nodes++;
    sums->numbers += ((struct node *)(void *)node)->number - 1;
}

#define SUM(type, variable)                                                                                            \
    __extension__({                                                                                                    \
        type sum_of = 0;                                                                                               \
        for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)                                                           \
            sum_of = (type)(sum_of + per_cpu_read(variable, cpu));                                                     \
        sum_of;                                                                                                        \
    })

static void check_single(void)
{
    assert(per_cpu_count() > 0 && initial == 41);
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++) {
        assert(per_cpu_read(initial, cpu) == 41 && per_cpu_ptr(initial, cpu) != &initial);
        assert((uintptr_t)per_cpu_ptr(stats, cpu) % alignof(struct stats) == 0);
    }
    /* One thread on one CPU, so the values are those of a plain variable. */
    cpu_set_t before_set, one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert(sched_getaffinity(0, sizeof before_set, &before_set) == 0 && sched_setaffinity(0, sizeof one, &one) == 0);
    struct stats before;
    memset(&before, 0, sizeof before);
    assert(memcmp(this_cpu_ptr(stats), &before, sizeof before) == 0);
    assert(this_cpu_add_return(steps[1], UINT32_MAX) == UINT32_MAX && this_cpu_add_return(steps[1], 1) == 0);
    assert(this_cpu_cmpxchg(stats.large, 5, 6) == 0 && this_cpu_cmpxchg(stats.large, 0, UINT64_MAX) == 0);
    assert(this_cpu_xchg(stats.large, 7) == UINT64_MAX && this_cpu_xchg(stats.large, 0) == 7);
    assert(this_cpu_write(stats.down, -2) == 0 && this_cpu_read(stats.down) == -2);
    assert(this_cpu_cmpxchg(stats.down, -2, 0) == -2 && this_cpu_read(stats.neighbour) == 0);
    assert(this_cpu_pop(list) == NULL);
    assert(sched_setaffinity(0, sizeof before_set, &before_set) == 0);
}

static void check_areas(int has_rseq)
{
    errno = 0;
    assert(dormouse_percpu_area_create(0, 0) == NULL && errno == EINVAL);
    errno = 0;
    assert(dormouse_percpu_area_create(8, 2) == NULL && errno == EINVAL);
    errno = 0;
    assert(dormouse_percpu_area_create(SIZE_MAX, 0) == NULL && errno == ENOMEM);
    dormouse_percpu_area_destroy(NULL);

    struct dormouse_percpu_pool *pool = dormouse_percpu_pool_create(NULL, NULL);
    struct dormouse_percpu_object object;
    assert(pool != NULL && dormouse_percpu_pool_alloc(pool, 64, 8, &object, NULL) == 0);
    const struct dormouse_percpu_area *area = dormouse_percpu_pool_area(pool);
    uint32_t *word = (uint32_t *)object.word;
    uint64_t both;
    assert(percpu_add(area, word, 1) == 0 && percpu_add(area, word + 1, 2) == 0);
    assert(dormouse_percpu_load(pool, object, 0, &both) == 0 && both == (1 | UINT64_C(2) << 32));
    assert(dormouse_percpu_add(pool, object, 0, 1) == 0 && percpu_xchg(area, word, 9) == 2);
    dormouse_percpu_pool_destroy(pool);

    errno = 0;
    assert(dormouse_percpu_fence(-2) == -EINVAL && dormouse_percpu_fence(1 << 30) == -EINVAL);
    int all = dormouse_percpu_fence(-1), one = dormouse_percpu_fence(0);
    assert(all == one && (has_rseq ? all == 0 || all == -ENOTSUP : all == -ENOTSUP) && errno == 0);
    by_id = dormouse_percpu_area_create(8, DORMOUSE_PERCPU_BY_CONCURRENCY_ID);
    assert(by_id != NULL && by_id->count == per_cpu_count());
}

int main(int argc, char **argv)
{
    const char *mode = argc > 2 ? argv[2] : argv[1];
    const char *plugin = getenv("THIS_CPU_PLUGIN");
    if (argc > 1 && strcmp(mode, "without") == 0)
        without_rseq(argv[0]);
    check_single();
    check_areas(argc < 2 || strcmp(mode, "refused") != 0);

    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = { { 0, 500 }, { 0, 500 } };
    setitimer(ITIMER_REAL, &timer, NULL);
    pthread_t threads[THREADS];
    static struct ledger ledgers[THREADS];
    struct ledger all;
    memset(&all, 0, sizeof all);
    for (int index = 0; index < THREADS; index++) {
        ledgers[index].magic = MAGIC;
        assert(pthread_create(&threads[index], NULL, work, &ledgers[index]) == 0);
    }
    for (int index = 0; index < THREADS; index++) {
        assert(pthread_join(threads[index], NULL) == 0);
        all.large += ledgers[index].large;
        all.steps += ledgers[index].steps;
        all.nodes += ledgers[index].nodes;
        all.popped += ledgers[index].popped;
        all.calls += ledgers[index].calls;
        all.in_library += ledgers[index].in_library;
    }
    struct itimerval none = { { 0, 0 }, { 0, 0 } };
    setitimer(ITIMER_REAL, &none, NULL);

    const uint32_t rounds = THREADS * ROUNDS;
    assert(SUM(uint32_t, stats.small) == rounds);
    assert(SUM(uint64_t, stats.large) == all.large + handled && handled > 0);
    assert(SUM(uint64_t, by_handler) == handled);
    assert(SUM(int32_t, stats.down) == -(int32_t)rounds);
    assert(SUM(uint32_t, stats.neighbour) == 0 - 3 * rounds);
    assert(SUM(uint32_t, steps[0]) + SUM(uint32_t, steps[1]) + SUM(uint32_t, steps[2]) == 2 * rounds);
    assert(SUM(uint64_t, initial) == 41 * (uint64_t)per_cpu_count() + all.steps && all.steps > 0);
    assert(all.calls == sum_by_calls() && all.calls > 0);
    assert(all.in_library == sum_in_library() && all.in_library > 0);
    uint64_t by_ids = 0, used = 0;
    for (uint32_t index = 0; index < by_id->count; index++) {
        uint64_t copy = __atomic_load_n(percpu_ptr(by_id, (uint64_t *)(void *)by_id->first, index), __ATOMIC_ACQUIRE);
        by_ids += copy;
        used += copy != 0;
    }
    assert(by_ids == rounds && (!dormouse_percpu_area_is_by_concurrency_id(by_id) || used <= THREADS + 1));
    dormouse_percpu_area_destroy(by_id);
    struct sums sums = { 0, 0 };
    per_cpu_drain(list, take, &sums);
    assert(sums.nodes == all.nodes && sums.numbers == all.popped && this_cpu_pop(list) == NULL);

    /* A library that is loaded again starts with its initial values, in the memory that it had. */
    void *places[2];
    for (int turn = 0; turn < 64; turn++) {
        void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
        assert(library != NULL);
        void *(*count)(void) = NULL;
        *(void **)(void *)&count = dlsym(library, "count_in_plugin");
        places[turn & 1] = count();
        assert(dlclose(library) == 0);
    }
    assert(places[0] == places[1]);
    puts("fine");
    return 0;
}
