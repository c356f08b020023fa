/* The scenarios of librseq's param_test, in C11 and C++11, under all disturbances at once: threads are moved, signals
 * arrive, sections are slow, and fences abort them. `../../src/tests/scenarios.rs` has them in Rust. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* Makes sections slow between their instructions. */
#ifdef __x86_64__
#define DORMOUSE_I_PERCPU_DELAY ".rept 40\n\tpause\n\t.endr\n\t"
#else
#define DORMOUSE_I_PERCPU_DELAY ".rept 40\n\tisb\n\t.endr\n\t"
#endif
#include <dormouse/this_cpu.h>

#include "without.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

enum { THREADS = 4, ROUNDS = 1000, SIGNALS = 40, ITEMS = 16, PLACES = 8, WORDS = 5, CPUS_MAX = 4096 };

struct worker {
    void (*work)(struct worker *);
    uint64_t number;
    pid_t thread;
    uint64_t turns; /* of `work` */
    uint64_t pushed, popped, sum_pushed, sum_popped;
};

static struct worker workers[THREADS];
static int stop, has_fences;
static uint64_t signals, signals_enough;

static void count_signal(int number)
{
    (void)number;
    __atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
}

static void *run_worker(void *argument)
{
    struct worker *worker = (struct worker *)argument;
    __atomic_store_n(&worker->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    do {
        worker->work(worker);
        worker->turns++;
    } while (__atomic_load_n(&signals, __ATOMIC_RELAXED) < signals_enough);
    __atomic_store_n(&worker->thread, 0, __ATOMIC_RELEASE);
    return NULL;
}

/* Moves every thread to another CPU, and sends it a signal. */
static void *disturb(void *argument)
{
    cpu_set_t allowed, one;
    (void)argument;
    assert(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    for (unsigned turn = 0; !__atomic_load_n(&stop, __ATOMIC_ACQUIRE); turn++) {
        for (unsigned index = 0; index < THREADS; index++) {
            pid_t thread = __atomic_load_n(&workers[index].thread, __ATOMIC_ACQUIRE);
            unsigned cpu = (turn + index) % (unsigned)CPU_COUNT(&allowed);
            if (thread == 0 || !CPU_ISSET(cpu, &allowed))
                continue;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(thread, sizeof one, &one);
            syscall(SYS_tgkill, getpid(), thread, SIGUSR1);
        }
        if (has_fences)
            assert(dormouse_percpu_fence(turn % 16 ? (int)(turn % per_cpu_count()) : -1) == 0);
        sched_yield();
    }
    return NULL;
}

/* Runs the work in all threads at once, until enough signals have arrived, and `manage` beside it. Returns how many times
 * it was run. */
static uint64_t run(void (*work)(struct worker *), void (*manage)(void))
{
    pthread_t threads[THREADS], disturber;
    uint64_t turns = 0;
    signals_enough = signals + SIGNALS;
    memset(workers, 0, sizeof workers);
    __atomic_store_n(&stop, 0, __ATOMIC_RELEASE);
    for (int index = 0; index < THREADS; index++) {
        workers[index].work = work;
        workers[index].number = (uint64_t)index;
        assert(pthread_create(&threads[index], NULL, run_worker, &workers[index]) == 0);
    }
    assert(pthread_create(&disturber, NULL, disturb, NULL) == 0);
    if (manage)
        manage();
    for (int index = 0; index < THREADS; index++) {
        assert(pthread_join(threads[index], NULL) == 0);
        turns += workers[index].turns;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    assert(pthread_join(disturber, NULL) == 0);
    return turns;
}

/* Counters. */

#ifdef MANY_VARIABLES
/* More than the header's constants provide for: the library finds the copies. */
__attribute__((used)) DEFINE_STATIC_PER_CPU(char, filler[1 << 19]);
#endif
DEFINE_PER_CPU(uint64_t, wide);
DEFINE_PER_CPU(uint32_t, narrow);
static const struct dormouse_percpu_area *by_id;

static void count(struct worker *worker)
{
    (void)worker;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        assert(this_cpu_add(wide, round + 1) == 0);
        assert(this_cpu_sub(wide, round) == 0);
        this_cpu_add_return(narrow, 1);
        assert(percpu_add(by_id, (uint64_t *)(void *)by_id->first, 1) == 0);
    }
}

static void check_counters(void)
{
    uint64_t sum = 0, sum_by_id = 0;
    uint32_t sum_narrow = 0;
    uint64_t rounds = ROUNDS * run(count, NULL);
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++) {
        sum += per_cpu_read(wide, cpu);
        sum_narrow += per_cpu_read(narrow, cpu);
        sum_by_id += __atomic_load_n(percpu_ptr(by_id, (uint64_t *)(void *)by_id->first, cpu), __ATOMIC_ACQUIRE);
    }
    assert(sum == rounds && sum_narrow == (uint32_t)rounds && sum_by_id == rounds);
}

/* Locks: one for each CPU, kept while the holder is moved. The holder releases it by a store: while it is held, the
 * operations of other threads store nothing. */

struct locked {
    uint64_t holder, first, second;
};
DEFINE_PER_CPU(struct locked, locked);

static void lock_and_unlock(struct worker *worker)
{
    const uint64_t me = worker->number + 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct locked *held = NULL;
        while (this_cpu_cmpxchg(locked.holder, 0, me) != 0)
            sched_yield();
        for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++) {
            if (per_cpu_read(locked.holder, cpu) == me) {
                assert(held == NULL);
                held = per_cpu_ptr(locked, cpu);
            }
        }
        assert(held != NULL && held->first == held->second);
        held->first++;
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
        held->second++;
        __atomic_store_n(&held->holder, 0, __ATOMIC_RELEASE);
    }
}

static void check_locks(void)
{
    uint64_t sum = 0;
    uint64_t rounds = ROUNDS * run(lock_and_unlock, NULL);
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        sum += per_cpu_ptr(locked, cpu)->second;
    assert(sum == rounds);
}

/* Lists: every item is on one list or belongs to one thread. */

struct item {
    struct dormouse_percpu_node node;
    uint32_t owners;
    uint64_t turns;
};
static struct item items[ITEMS];
DEFINE_PER_CPU(struct dormouse_percpu_list, list);

static void give(struct item *item)
{
    assert(__atomic_fetch_sub(&item->owners, 1, __ATOMIC_RELAXED) == 1);
    this_cpu_push(list, &item->node);
}

static void pop_and_push(struct worker *worker)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct item *item = (struct item *)(void *)this_cpu_pop(list);
        if (item) {
            assert(__atomic_fetch_add(&item->owners, 1, __ATOMIC_RELAXED) == 0);
            item->turns++;
            worker->popped++;
            give(item);
        }
    }
}

static void take(struct dormouse_percpu_node *node, void *argument)
{
    *(uint64_t *)argument += 1;
    (void)node;
}

static void check_lists(void)
{
    uint64_t left = 0, turns = 0, popped = 0;
    for (int index = 0; index < ITEMS; index++) {
        items[index].owners = 1;
        give(&items[index]);
    }
    run(pop_and_push, NULL);
    per_cpu_drain(list, take, &left);
    for (int index = 0; index < ITEMS; index++)
        turns += items[index].turns;
    for (int index = 0; index < THREADS; index++)
        popped += workers[index].popped;
    assert(left == ITEMS && turns == popped && popped > 0);
}

/* Buffers: a stack of records on each CPU. `state` has the number of records in its lowest byte, then the number of
 * pushes, and the CPU in its highest 12 bits: so a pop takes only what it has read. */

struct buffer {
    uint64_t state;
    uint64_t records[PLACES][WORDS];
};
static struct dormouse_percpu_pool *pool;
static struct dormouse_percpu_object buffers;
static int record_words;

static struct buffer *buffer_of(uint64_t state)
{
    return (struct buffer *)dormouse_percpu_pool_address(pool, buffers, (uint32_t)(state >> 52));
}

static uint64_t word_of(uint64_t first, int word)
{
    return word == 0 ? first : first * (UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)word);
}

static void push_and_pop(struct worker *worker)
{
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t state, record[WORDS], first = worker->number << 32 | round;
        assert(dormouse_percpu_load(pool, buffers, offsetof(struct buffer, state), &state) == 0);
        if ((uint8_t)state < PLACES) {
            for (int word = 0; word < record_words; word++)
                record[word] = word_of(first, word);
            struct dormouse_percpu_copy copy;
            memset(&copy, 0, sizeof copy);
            copy.guard_offset = copy.last_offset = offsetof(struct buffer, state);
            copy.expected = state;
            copy.to_offset = offsetof(struct buffer, records) + (uint8_t)state * sizeof record;
            copy.from = record;
            copy.size_bytes = (size_t)record_words * sizeof record[0];
            copy.value = state + 1 + (UINT64_C(1) << 8);
            int pushed = dormouse_percpu_copy_and_store(pool, buffers, &copy);
            assert(pushed == 0 || pushed == 1);
            if (pushed == 0) {
                worker->pushed++;
                worker->sum_pushed += first;
            }
        }
        if (round % 3 == 0)
            continue;
        assert(dormouse_percpu_load(pool, buffers, offsetof(struct buffer, state), &state) == 0);
        if ((uint8_t)state == 0)
            continue;
        for (int word = 0; word < record_words; word++)
            record[word] = __atomic_load_n(&buffer_of(state)->records[(uint8_t)state - 1][word], __ATOMIC_ACQUIRE);
        if (dormouse_percpu_compare_and_store(pool, buffers, offsetof(struct buffer, state), state, state - 1) == 0) {
            for (int word = 1; word < record_words; word++)
                assert(record[word] == word_of(record[0], word));
            worker->popped++;
            worker->sum_popped += record[0];
        }
    }
}

static void check_buffers(int words)
{
    uint64_t pushed = 0, sum_pushed = 0, popped = 0, sum_popped = 0;
    record_words = words;
    assert(dormouse_percpu_pool_alloc(pool, sizeof(struct buffer), 8, &buffers, NULL) == 0);
    uint32_t cpus = dormouse_percpu_pool_cpu_count(pool);
    assert(cpus <= CPUS_MAX);
    for (uint64_t cpu = 0; cpu < cpus; cpu++)
        buffer_of(cpu << 52)->state = cpu << 52;
    run(push_and_pop, NULL);
    for (int index = 0; index < THREADS; index++) {
        pushed += workers[index].pushed;
        sum_pushed += workers[index].sum_pushed;
        popped += workers[index].popped;
        sum_popped += workers[index].sum_popped;
    }
    assert(popped > 0);
    for (uint64_t cpu = 0; cpu < cpus; cpu++) {
        struct buffer *buffer = buffer_of(cpu << 52);
        for (uint32_t place = 0; place < (uint8_t)buffer->state; place++) {
            for (int word = 1; word < record_words; word++)
                assert(buffer->records[place][word] == word_of(buffer->records[place][0], word));
            popped++;
            sum_popped += buffer->records[place][0];
        }
    }
    assert(pushed == popped && sum_pushed == sum_popped);
}

/* Fences: a manager says which of two words to use, and knows after a fence that no section changes the other one. */

struct switched {
    uint64_t active, words[2];
};
static struct dormouse_percpu_object switched;
static int is_managed;

static void store_in_active(struct worker *worker)
{
    for (uint64_t round = 1; __atomic_load_n(&is_managed, __ATOMIC_ACQUIRE); round++) {
        struct dormouse_percpu_copy copy;
        uint64_t unused = 0;
        memset(&copy, 0, sizeof copy);
        copy.from = &unused;
        copy.guard_offset = offsetof(struct switched, active);
        assert(dormouse_percpu_load(pool, switched, copy.guard_offset, &copy.expected) == 0);
        copy.last_offset = offsetof(struct switched, words) + copy.expected * sizeof(uint64_t);
        copy.value = round * THREADS + worker->number;
        int stored = dormouse_percpu_copy_and_store(pool, switched, &copy);
        assert(stored == 0 || stored == 1);
        worker->pushed += stored == 0;
    }
}

static struct switched *switched_of(uint32_t cpu)
{
    return (struct switched *)dormouse_percpu_pool_address(pool, switched, cpu);
}

static void switch_words(void)
{
    static uint64_t before[CPUS_MAX];
    uint32_t cpus = dormouse_percpu_pool_cpu_count(pool);
    for (uint64_t turn = 1; turn < 400; turn++) {
        for (uint32_t cpu = 0; cpu < cpus; cpu++)
            __atomic_store_n(&switched_of(cpu)->active, turn % 2, __ATOMIC_RELAXED);
        assert(dormouse_percpu_fence(-1) == 0);
        for (uint32_t cpu = 0; cpu < cpus; cpu++)
            before[cpu] = __atomic_load_n(&switched_of(cpu)->words[1 - turn % 2], __ATOMIC_RELAXED);
        usleep(100);
        for (uint32_t cpu = 0; cpu < cpus; cpu++)
            assert(before[cpu] == __atomic_load_n(&switched_of(cpu)->words[1 - turn % 2], __ATOMIC_RELAXED));
    }
    __atomic_store_n(&is_managed, 0, __ATOMIC_RELEASE);
}

static void check_fences(void)
{
    uint64_t stored = 0;
    assert(dormouse_percpu_pool_alloc(pool, sizeof(struct switched), 8, &switched, NULL) == 0);
    is_managed = 1;
    has_fences = 0;
    run(store_in_active, switch_words);
    for (int index = 0; index < THREADS; index++)
        stored += workers[index].pushed;
    assert(stored > 0);
}

int main(int argc, char **argv)
{
    struct sigaction action;
    if (argc > 1 && strcmp(argv[1], "without") == 0)
        without_rseq(argv[0]);
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal;
    action.sa_flags = SA_RESTART;
    assert(sigaction(SIGUSR1, &action, NULL) == 0);
    pool = dormouse_percpu_pool_create(NULL, NULL);
    by_id = dormouse_percpu_area_create(8, DORMOUSE_PERCPU_BY_CONCURRENCY_ID);
    assert(pool != NULL && by_id != NULL && per_cpu_count() > 0);
    has_fences = dormouse_percpu_fence(-1) == 0;
    assert(has_fences || (argc > 1 && strcmp(argv[1], "refused") == 0));
    const int can_wait = has_fences;
    check_counters();
    check_locks();
    check_lists();
    check_buffers(1);
    check_buffers(WORDS);
    if (can_wait)
        check_fences();
    dormouse_percpu_area_destroy(by_id);
    dormouse_percpu_pool_destroy(pool);
    puts("fine");
    return 0;
}
