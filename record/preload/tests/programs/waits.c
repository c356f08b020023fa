/* One thread holds a lock until another one waits for it, for a mutex and both sides of a read-write lock. The waiting thread keeps its
 * own account. Prints a line for each wait: the lock, the waiter's and the holder's id, the nanoseconds that the lock was surely waited
 * for, and those that the call took. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum way { LOCK, TIMED_LOCK, CLOCK_LOCK, READ, TIMED_READ, WRITE, TIMED_WRITE, WRITE_BEHIND_READER, WAYS };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static volatile pid_t waiter;
static enum way way;
static struct timespec until;
static long call_ns, since_ns;

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void *wait_for_it(void *unused) {
    waiter = gettid();
    int failed;
    long before = now_ns();
    switch (way) {
    case LOCK: failed = pthread_mutex_lock(&mutex); break;
    case TIMED_LOCK: failed = pthread_mutex_timedlock(&mutex, &until); break;
    case CLOCK_LOCK: failed = pthread_mutex_clocklock(&mutex, CLOCK_REALTIME, &until); break;
    case READ: failed = pthread_rwlock_rdlock(&rwlock); break;
    case TIMED_READ: failed = pthread_rwlock_timedrdlock(&rwlock, &until); break;
    case WRITE: case WRITE_BEHIND_READER: failed = pthread_rwlock_wrlock(&rwlock); break;
    default: failed = pthread_rwlock_timedwrlock(&rwlock, &until); break;
    }
    call_ns = now_ns() - before;
    if (failed)
        abort();
    if (way <= CLOCK_LOCK)
        pthread_mutex_unlock(&mutex);
    else
        pthread_rwlock_unlock(&rwlock);
    return unused;
}

/* Returns when the thread sleeps in a call of the kernel. */
static void until_it_sleeps(pid_t tid) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)tid);
    while (state != 'S') {
        FILE *file = fopen(path, "r");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            abort();
        fclose(file);
        sched_yield();
    }
}

int main(void) {
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1000;
    for (way = 0; way < WAYS; way++) {
        int is_mutex = way <= CLOCK_LOCK;
        waiter = 0;
        if (is_mutex)
            pthread_mutex_lock(&mutex);
        else if (way == WRITE_BEHIND_READER)
            pthread_rwlock_rdlock(&rwlock);
        else
            pthread_rwlock_wrlock(&rwlock);
        pthread_t thread;
        pthread_create(&thread, NULL, wait_for_it, NULL);
        while (!waiter)
            sched_yield();
        until_it_sleeps(waiter);
        since_ns = now_ns();
        usleep(20000);
        long surely_ns = now_ns() - since_ns;
        if (is_mutex)
            pthread_mutex_unlock(&mutex);
        else
            pthread_rwlock_unlock(&rwlock);
        pthread_join(thread, NULL);
        printf("%p %d %d %ld %ld\n", is_mutex ? (void *)&mutex : (void *)&rwlock, (int)waiter, way == WRITE_BEHIND_READER ? 0 : (int)gettid(),
               surely_ns, call_ns);
    }
    return 0;
}
