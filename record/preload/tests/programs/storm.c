/* THREADS threads write ROUNDS times each, and check that errno is preserved. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 10000 };

static int sink;

static void *run(void *unused) {
    intptr_t wrong = 0;
    (void)unused;
    for (int round = 0; round < ROUNDS; round++) {
        errno = 4242;
        wrong |= write(sink, "x", 1) != 1;
        wrong |= errno != 4242;
    }
    return (void *)wrong;
}

int main(void) {
    pthread_t threads[THREADS];
    intptr_t wrong = 0;
    sink = open("/dev/null", O_WRONLY);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run, NULL))
            return 1;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong |= (intptr_t)result;
    }
    return wrong != 0;
}
