/* Locks and unlocks one mutex whose address it prints. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

int main(void) {
    pthread_mutex_t mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;
    int wrong = 0;
    for (int round = 0; round < 1000; round++) {
        wrong |= pthread_mutex_lock(&mutex) != 0;
        wrong |= pthread_mutex_lock(&mutex) != EDEADLK;
        wrong |= pthread_mutex_trylock(&mutex) != EBUSY;
        wrong |= pthread_mutex_unlock(&mutex) != 0;
        wrong |= pthread_mutex_unlock(&mutex) != EPERM;
    }
    printf("%p\n", (void *)&mutex);
    return wrong;
}
