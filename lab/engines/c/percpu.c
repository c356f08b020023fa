/*
 * Additions of C programs, for the experiment `percpu`; `percpu_c.rs` is the program.
 *
 *   c-atomic         one word for all CPUs, __atomic_fetch_add
 *   c-this-cpu       this_cpu_add() of a variable, inline
 *   c-called         the same as a call, as DORMOUSE_GENERIC has it
 *   c-percpu         percpu_add() of an object in a pool, inline
 *   c-counter-N      dormouse_percpu_counter_add(), a call; threshold N
 *   c-librseq        rseq_load_add_store__ptr() of librseq on memory of its pool, inline; if it was installed
 *
 * SHAPE is `hot`, one counter, or `random`, one of 4,096 whose number comes from a table.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include <dormouse/this_cpu.h>

#include "loops.h"

#ifdef LAB_LIBRSEQ
#include <rseq/mempool.h>
#include <rseq/rseq.h>
#endif

#define COUNTERS 4096

static uint32_t numbers[COUNTERS];

/* Its high bits make a good random number (L'Ecuyer 1999). */
#define MULTIPLIER UINT64_C(2862933555777941757)
#define NUMBER() numbers[(number * MULTIPLIER >> 40) % COUNTERS]

static uint64_t atomics[COUNTERS];
DEFINE_STATIC_PER_CPU(uint64_t, variables[COUNTERS]);

static struct dormouse_percpu_pool *pool;
static const struct dormouse_percpu_area *area;
static uint64_t *objects[COUNTERS];
static struct dormouse_percpu_counter *counter_32, *counter_1024;

void dormouse_lab_add_called(uint32_t index);
uint64_t dormouse_lab_sum_called(void);

#define NOTHING (void)0

LAB_REPEAT(empty_hot, NOTHING, NOTHING)
LAB_LOOP(empty_random, NOTHING, uint32_t index = NUMBER(); LAB_OPAQUE(index))

LAB_REPEAT(hot_atomic, NOTHING, __atomic_fetch_add(&atomics[COUNTERS / 2], 1, __ATOMIC_RELAXED))
LAB_LOOP(random_atomic, NOTHING, __atomic_fetch_add(&atomics[NUMBER()], 1, __ATOMIC_RELAXED))

LAB_REPEAT(hot_this_cpu, NOTHING, this_cpu_add(variables[COUNTERS / 2], 1))
LAB_LOOP(random_this_cpu, NOTHING, this_cpu_add(variables[NUMBER()], 1))

LAB_REPEAT(hot_called, NOTHING, dormouse_lab_add_called(COUNTERS / 2))
LAB_LOOP(random_called, NOTHING, dormouse_lab_add_called(NUMBER()))

#define IN_POOL const struct dormouse_percpu_area *in = area
LAB_REPEAT(hot_percpu, IN_POOL; uint64_t *object = objects[COUNTERS / 2], percpu_add(in, object, 1))
LAB_LOOP(random_percpu, IN_POOL, percpu_add(in, objects[(number * MULTIPLIER >> 40) % COUNTERS], 1))

LAB_REPEAT(hot_counter_32, struct dormouse_percpu_counter *counter = counter_32, dormouse_percpu_counter_add(counter, 1))
LAB_REPEAT(hot_counter_1024, struct dormouse_percpu_counter *counter = counter_1024,
           dormouse_percpu_counter_add(counter, 1))

#ifdef LAB_LIBRSEQ
static intptr_t __rseq_percpu *rseq_words;

static inline __attribute__((always_inline)) void add_by_librseq(intptr_t __rseq_percpu *word)
{
    int cpu;
    do
        cpu = (int)rseq_cpu_start();
    while (rseq_load_add_store__ptr(RSEQ_MO_RELAXED, RSEQ_PERCPU_CPU_ID, rseq_percpu_ptr(word, cpu), 1, cpu));
}

#define IN_ITS_POOL intptr_t __rseq_percpu *words = rseq_words
LAB_REPEAT(hot_librseq, IN_ITS_POOL, add_by_librseq(words + COUNTERS / 2))
LAB_LOOP(random_librseq, IN_ITS_POOL, add_by_librseq(words + NUMBER()))

static bool prepare_librseq(void)
{
    struct rseq_mempool_attr *attr = rseq_mempool_attr_create();
    /* Its sections start over for ever in a thread that is not registered. */
    if (!rseq_available(RSEQ_AVAILABLE_QUERY_LIBC) || !attr || rseq_mempool_attr_set_percpu(attr, RSEQ_MEMPOOL_STRIDE, (int)per_cpu_count()))
        return false;
    struct rseq_mempool *words = rseq_mempool_create("counters", COUNTERS * sizeof(intptr_t), attr);
    rseq_words = words ? (intptr_t __rseq_percpu *)rseq_mempool_percpu_zmalloc(words) : NULL;
    return rseq_words != NULL;
}

static uint64_t sum_of_librseq(void)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        for (size_t index = 0; index < COUNTERS; index++)
            sum += (uint64_t)*rseq_percpu_ptr(rseq_words + index, (int)cpu);
    return sum;
}
#else
static bool prepare_librseq(void)
{
    return true;
}

static uint64_t sum_of_librseq(void)
{
    return 0;
}
#endif

static const struct dormouse_lab_case cases[] = {
    { "empty_hot", empty_hot, 0 },
    { "empty_random", empty_random, 0 },
    { "hot_c-atomic", hot_atomic, 1 },
    { "random_c-atomic", random_atomic, 1 },
    { "hot_c-this-cpu", hot_this_cpu, 1 },
    { "random_c-this-cpu", random_this_cpu, 1 },
    { "hot_c-called", hot_called, 1 },
    { "random_c-called", random_called, 1 },
    { "hot_c-percpu", hot_percpu, 1 },
    { "random_c-percpu", random_percpu, 1 },
    { "hot_c-counter-32", hot_counter_32, 1 },
    { "hot_c-counter-1024", hot_counter_1024, 1 },
#ifdef LAB_LIBRSEQ
    { "hot_c-librseq", hot_librseq, 1 },
    { "random_c-librseq", random_librseq, 1 },
#endif
};

/* Returns the cases; NULL if there is no memory. */
const struct dormouse_lab_case *dormouse_lab_c_cases(size_t *count)
{
    pool = dormouse_percpu_pool_create(NULL, NULL);
    counter_32 = dormouse_percpu_counter_create(32);
    counter_1024 = dormouse_percpu_counter_create(1024);
    if (!pool || !counter_32 || !counter_1024 || per_cpu_count() == 0 || !prepare_librseq())
        return NULL;
    area = dormouse_percpu_pool_area(pool);
    for (uint32_t index = 0; index < COUNTERS; index++) {
        struct dormouse_percpu_object object;
        numbers[index] = index;
        if (dormouse_percpu_pool_alloc(pool, sizeof(uint64_t), sizeof(uint64_t), &object, NULL) != 0)
            return NULL;
        objects[index] = dormouse_percpu_pool_address(pool, object, 0);
    }
    *count = LAB_COUNT(cases);
    return cases;
}

/* Returns the sum of all counters. */
uint64_t dormouse_lab_c_arrived(void)
{
    uint64_t sum = dormouse_lab_sum_called() + sum_of_librseq();
    for (size_t index = 0; index < COUNTERS; index++) {
        sum += __atomic_load_n(&atomics[index], __ATOMIC_RELAXED);
        for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
            sum += per_cpu_read(variables[index], cpu) +
                   __atomic_load_n(percpu_ptr(area, objects[index], cpu), __ATOMIC_ACQUIRE);
    }
    return sum + (uint64_t)dormouse_percpu_counter_sum(counter_32) + (uint64_t)dormouse_percpu_counter_sum(counter_1024);
}
