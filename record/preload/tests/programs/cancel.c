/* Cancels a thread that waits in read, whose clean-up handler must run. */
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static int ends[2];

static void clean_up(void *unused) {
    (void)unused;
    puts("cleaned up");
}

static void *run(void *unused) {
    char byte;
    pthread_cleanup_push(clean_up, NULL);
    if (read(ends[0], &byte, 1) >= 0)
        puts("read");
    pthread_cleanup_pop(0);
    return unused;
}

int main(void) {
    pthread_t thread;
    void *result;
    if (pipe(ends) || pthread_create(&thread, NULL, run, NULL))
        return 1;
    usleep(50000);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    return result != PTHREAD_CANCELED;
}
