/*
 * A thread pool that profiles how long jobs wait. Whether it does is a static branch, how many jobs are measured is an
 * immediate value, and what is done with a measurement is a static call; all change while its threads run: by the program
 * itself, or, with the argument `--listen`, by an operator with `dormouse imv`.
 */
#define _GNU_SOURCE
#include <dormouse/imv.h>
#include <dormouse/tunable.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 3, JOBS = 8000 };

/* Queue of the jobs; number -1 ends a thread. */
static struct job {
    int number;
    uint64_t queued_ns; /* when it was queued, if it is measured, otherwise 0 */
} queue[JOBS + THREADS];
static int head, tail;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t is_filled = PTHREAD_COND_INITIALIZER;
static int done, samples;
static uint64_t waited_ns, longest_ns;

static void add(uint64_t wait_ns)
{
    __atomic_add_fetch(&waited_ns, wait_ns, __ATOMIC_RELAXED);
}

static void add_and_compare(uint64_t wait_ns)
{
    add(wait_ns);
    uint64_t longest = __atomic_load_n(&longest_ns, __ATOMIC_RELAXED);
    while (wait_ns > longest &&
           !__atomic_compare_exchange_n(&longest_ns, &longest, wait_ns, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

DEFINE_STATIC_KEY(profiling);       /* whether waiting times are measured */
DEFINE_IMV(int, sample_every) = 1;  /* one of so many jobs is measured */
DEFINE_STATIC_CALL(note_wait, add); /* what is done with a measurement */
DORMOUSE_TUNABLE_KEY(profiling, "pool.profiling", "whether waiting times are measured");
DORMOUSE_TUNABLE_RANGE(sample_every, "pool.sample_every", "one of so many jobs is measured", 1, 1000);

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void submit(int number)
{
    struct job job = {number, 0};
    if (static_branch_unlikely(&profiling) && number >= 0 && number % imv_read(sample_every) == 0)
        job.queued_ns = now_ns();
    pthread_mutex_lock(&mutex);
    queue[tail++ % (JOBS + THREADS)] = job;
    pthread_cond_signal(&is_filled);
    pthread_mutex_unlock(&mutex);
}

static struct job take(void)
{
    pthread_mutex_lock(&mutex);
    while (head == tail)
        pthread_cond_wait(&is_filled, &mutex);
    struct job job = queue[head++ % (JOBS + THREADS)];
    pthread_mutex_unlock(&mutex);
    return job;
}

static void *work(void *unused)
{
    for (struct job job = take(); job.number >= 0; job = take()) {
        if (static_branch_unlikely(&profiling) && job.queued_ns) {
            static_call(note_wait)(now_ns() - job.queued_ns);
            __atomic_add_fetch(&samples, 1, __ATOMIC_RELAXED);
        }
        __atomic_add_fetch(&done, 1, __ATOMIC_RELEASE);
    }
    return unused;
}

static void phase(const char *name)
{
    const int done_before = __atomic_load_n(&done, __ATOMIC_ACQUIRE);
    const int samples_before = __atomic_load_n(&samples, __ATOMIC_RELAXED);
    for (int number = 0; number < JOBS; number++)
        submit(number);
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < done_before + JOBS)
        sched_yield();
    printf("%s: %d jobs, %d measured\n", name, JOBS, __atomic_load_n(&samples, __ATOMIC_RELAXED) - samples_before);
}

static void must(int error)
{
    if (error) {
        fprintf(stderr, "%s\n", strerror(-error));
        exit(1);
    }
}

/* Runs jobs until the program is killed. Operators change key and value meanwhile. */
static void serve(void)
{
    const struct timespec pause = {0, 100000000};
    must(imv_listen());
    for (;;) {
        phase("served");
        fflush(stdout);
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        must(-pthread_create(&threads[index], NULL, work, NULL));
    if (argc > 1 && !strcmp(argv[1], "--listen"))
        serve();
    phase("off");
    must(static_branch_enable(&profiling));
    phase("every job");
    struct dormouse_imv_change rarely = IMV_CHANGE(sample_every, 16);
    must(dormouse_imv_update(&rarely, 1));
    must(static_call_update(note_wait, add_and_compare));
    phase("one of 16");
    must(static_branch_disable(&profiling));
    phase("off again");
    for (int index = 0; index < THREADS; index++)
        submit(-1);
    for (int index = 0; index < THREADS; index++)
        must(-pthread_join(threads[index], NULL));
    printf("mean waiting time: %llu ns\n", (unsigned long long)(waited_ns / (uint64_t)samples));
    return longest_ns == 0;
}
