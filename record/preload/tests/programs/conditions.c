/* A thread waits for a condition, each time with another function. Prints the addresses of mutex and condition, and the thread's id. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pid_t waiter;
static int turn, wrong;

static void *wait_for_turns(void *unused) {
    struct timespec past = {1, 0}, future;
    clock_gettime(CLOCK_REALTIME, &future);
    future.tv_sec += 1000;
    waiter = gettid();
    pthread_mutex_lock(&mutex);
    wrong |= pthread_cond_timedwait(&condition, &mutex, &past) != ETIMEDOUT;
    turn = 1;
    pthread_cond_broadcast(&condition);
    while (turn < 2)
        wrong |= pthread_cond_wait(&condition, &mutex) != 0;
    turn = 3;
    pthread_cond_broadcast(&condition);
    while (turn < 4)
        wrong |= pthread_cond_timedwait(&condition, &mutex, &future) != 0;
    clock_gettime(CLOCK_MONOTONIC, &future);
    future.tv_sec += 1000;
    turn = 5;
    pthread_cond_broadcast(&condition);
    while (turn < 6)
        wrong |= pthread_cond_clockwait(&condition, &mutex, CLOCK_MONOTONIC, &future) != 0;
    pthread_mutex_unlock(&mutex);
    return unused;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_for_turns, NULL))
        return 1;
    for (int next = 2; next <= 6; next += 2) {
        pthread_mutex_lock(&mutex);
        while (turn != next - 1)
            pthread_cond_wait(&condition, &mutex);
        turn = next;
        pthread_cond_broadcast(&condition);
        pthread_mutex_unlock(&mutex);
    }
    pthread_join(thread, NULL);
    printf("%p %p %d\n", (void *)&mutex, (void *)&condition, (int)waiter);
    return wrong;
}
