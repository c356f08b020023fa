/* THREADS threads allocate and free blocks of known sizes ROUNDS times. */
#include <pthread.h>
#include <stdlib.h>

enum { THREADS = 4, ROUNDS = 5000 };

static void *run(void *unused) {
    for (int round = 0; round < ROUNDS; round++) {
        void *volatile block = malloc(12345);
        free(block);
        block = calloc(3, 4567);
        block = realloc(block, 23456);
        free(block);
    }
    return unused;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run, NULL))
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
