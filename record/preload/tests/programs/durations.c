/* One thread reads an empty pipe, then writes to a full one, until another thread sees that it sleeps and goes on. The first keeps its
 * own account. Prints a line for each of its calls: the descriptor, 1 if it wrote, the nanoseconds that it surely waited, and those that
 * the call took. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int ends[2];
static volatile pid_t waiter;
static volatile size_t size;
static int is_write;
static long call_ns;

static long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static void *wait_for_it(void *unused) {
    char byte[16];
    waiter = gettid();
    long before = now_ns();
    /* The compiler does not know the size, so with _FORTIFY_SOURCE it calls __read_chk. */
    ssize_t result = is_write ? write(ends[1], byte, 1) : read(ends[0], byte, size);
    call_ns = now_ns() - before;
    if (result != 1)
        abort();
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
    static char bytes[4096];
    pthread_t thread;
    size = 1;
    if (pipe(ends))
        abort();
    for (is_write = 0; is_write < 2; is_write++) {
        if (is_write) {
            fcntl(ends[1], F_SETFL, O_NONBLOCK);
            while (write(ends[1], bytes, sizeof bytes) > 0) {}
            fcntl(ends[1], F_SETFL, 0);
        }
        waiter = 0;
        pthread_create(&thread, NULL, wait_for_it, NULL);
        while (!waiter)
            sched_yield();
        until_it_sleeps(waiter);
        long begin = now_ns();
        while (now_ns() - begin < 3000000) {}
        long sure_ns = now_ns() - begin;
        if (is_write ? read(ends[0], bytes, sizeof bytes) != sizeof bytes : write(ends[1], bytes, 1) != 1)
            abort();
        pthread_join(thread, NULL);
        printf("%d %d %ld %ld\n", ends[is_write], is_write, sure_ns, call_ns);
    }
    return 0;
}
