/*
 * Counts how often its event is evaluated: `counted N` emits N events. Without N it continues until its input ends, and
 * prints `hundred` when a hundred have been evaluated. Exit code 7.
 */
#define _POSIX_C_SOURCE 200809L

#include <dormouse/event.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static atomic_bool is_over;

static void *wait_for_end(void *unused) {
    (void)unused;
    while (getchar() != EOF) {
    }
    is_over = true;
    return NULL;
}

int main(int argc, char **argv) {
    unsigned long count = argc > 1 ? strtoul(argv[1], NULL, 10) : 0, evaluated = 0;
    pthread_t thread;
    if (count == 0 && pthread_create(&thread, NULL, wait_for_end, NULL) != 0) {
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (unsigned long number = 0; count == 0 ? !is_over : number < count; number++) {
        unsigned long before = evaluated;
        DORMOUSE_EVENT(counted, tick, (number, ++evaluated), (text, "tick"));
        if (count == 0 && evaluated == 100 && before != evaluated) {
            puts("hundred");
            fflush(stdout);
        }
        if (count == 0 && number % 10 == 0) {
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
    }
    printf("evaluated %lu\n", evaluated);
    return 7;
}
