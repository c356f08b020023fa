/*
 * A flight recorder of a pool of workers. It keeps the last records of each CPU in a file, prints them at SIGUSR1 while the
 * workers go on, and after a crash or `kill -9` another run prints what the file has.
 *
 *     cc -O2 recorder.c -o recorder -pthread $(pkg-config --cflags --libs dormouse-relay)
 *     ./recorder FILE            works until SIGTERM, and prints at SIGUSR1
 *     ./recorder FILE crash      works until a worker aborts
 *     ./recorder --read FILE     prints the records of a run that has ended
 */
#define _GNU_SOURCE
#include <dormouse/relay.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORKER_COUNT = 4, PAGES_PER_CPU = 8, ATTEMPTS = 1000, CRASH_AT = 50000 };
enum { BEGAN, ENDED };

/* The header of a record; the name of the job follows. */
struct header {
    uint64_t time_ns;
    uint32_t job;
    uint16_t worker;
    uint16_t step;
};

static struct dormouse_relay_channel *channel;
static uint32_t job_count;
static int has_crash, is_stopped;

static void record(uint16_t worker, uint32_t job, uint16_t step, const char *name)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct header header = { (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, job, worker, step };
    /* If there is no page, it counts the record, and the worker goes on. */
    (void)dormouse_relay_channel_write(channel, &header, sizeof header, name, strlen(name));
}

static void *work(void *argument)
{
    uint16_t worker = (uint16_t)(uintptr_t)argument;
    volatile uint64_t sum = 0;
    while (!__atomic_load_n(&is_stopped, __ATOMIC_RELAXED)) {
        uint32_t job = __atomic_add_fetch(&job_count, 1, __ATOMIC_RELAXED);
        char name[32];
        snprintf(name, sizeof name, "resize image %u", job);
        record(worker, job, BEGAN, name);
        for (uint32_t step = 0; step < job % 1000; step++)
            sum = sum + step;
        if (has_crash && job == CRASH_AT)
            abort();
        record(worker, job, ENDED, name);
    }
    return NULL;
}

/* Takes a page. If a worker is in the middle of a record, waits until it has gone on. */
static int take(uint32_t cpu, struct dormouse_relay_page *page, unsigned int flags)
{
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int error = dormouse_relay_channel_take(channel, cpu, page, flags);
        if (error != -EBUSY)
            return error;
        nanosleep(&(struct timespec) { 0, 1000000 }, NULL);
    }
    return -EBUSY;
}

/* Takes and prints what is there: for each CPU the number of records, and the last one. Workers may fill pages as fast as they
 * are taken, so it takes no more than there were. */
static void print_records(unsigned int flags)
{
    for (uint32_t cpu = 0; cpu < dormouse_relay_channel_buffer_count(channel); cpu++) {
        struct header last = { 0, 0, 0, 0 };
        char name[33] = "";
        unsigned long count = 0;
        struct dormouse_relay_page page;
        dormouse_relay_channel_flush(channel, cpu);
        for (uint32_t left = PAGES_PER_CPU * dormouse_relay_channel_buffer_count(channel); left > 0; left--) {
            if (take(cpu, &page, flags) != 0)
                break;
            const char *found;
            size_t len;
            while ((found = dormouse_relay_channel_next(channel, &page, &len)) != NULL) {
                memcpy(&last, found, sizeof last);
                snprintf(name, sizeof name, "%.*s", (int)(len - sizeof last), found + sizeof last);
                count++;
            }
            dormouse_relay_channel_give_back(channel, &page);
        }
        struct dormouse_relay_counts counts;
        dormouse_relay_channel_counts(channel, cpu, &counts);
        if (count > 0)
            printf("CPU %u: %lu records, %llu overwritten; the last: worker %u %s %s\n", cpu, count,
                   (unsigned long long)counts.overwritten, last.worker, last.step == BEGAN ? "began" : "ended", name);
    }
    printf("--\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    int is_reader = argc == 3 && strcmp(argv[1], "--read") == 0;
    has_crash = argc == 3 && strcmp(argv[2], "crash") == 0;
    if (argc != 2 && !is_reader && !has_crash) {
        fprintf(stderr, "usage: recorder FILE [crash] | recorder --read FILE\n");
        return 2;
    }
    int file = open(argv[is_reader ? 2 : 1], O_RDWR | (is_reader ? 0 : O_CREAT), 0600);
    struct dormouse_relay_channel_options options;
    dormouse_relay_channel_options_init(&options, DORMOUSE_RELAY_OVERWRITE);
    options.page_size_bytes = 4096;
    options.page_count = PAGES_PER_CPU * options.buffer_count;
    if (file >= 0)
        channel = is_reader ? dormouse_relay_channel_open(file) : dormouse_relay_channel_create(file, &options);
    if (channel == NULL) {
        perror("recorder");
        return 1;
    }
    if (is_reader) {
        print_records(DORMOUSE_RELAY_WRITERS_ENDED);
        return 0;
    }

    /* The signals are for this thread, which waits for them. */
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    pthread_t workers[WORKER_COUNT];
    for (uintptr_t worker = 0; worker < WORKER_COUNT; worker++)
        if (pthread_create(&workers[worker], NULL, work, (void *)worker) != 0)
            return 1;
    printf("process %d, %d workers\n", (int)getpid(), WORKER_COUNT);
    fflush(stdout);
    int signal;
    while (sigwait(&signals, &signal) == 0 && signal == SIGUSR1)
        print_records(0);
    __atomic_store_n(&is_stopped, 1, __ATOMIC_RELAXED);
    for (int worker = 0; worker < WORKER_COUNT; worker++)
        pthread_join(workers[worker], NULL);
    print_records(0);
    dormouse_relay_channel_destroy(channel);
    return 0;
}
