/* A handler writes while main allocates. Prints the number of writes, and their descriptor. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static int sink;
static volatile sig_atomic_t handled;

static void handle(int signal) {
    (void)signal;
    int before = errno;
    if (write(sink, "x", 1) == 1)
        handled++;
    errno = before;
}

int main(void) {
    sink = open("/dev/null", O_WRONLY);
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 50}, {0, 50}}, off = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int round = 0; round < 100000; round++) {
        void *volatile block = malloc(50001);
        free(block);
    }
    setitimer(ITIMER_REAL, &off, NULL);
    printf("%d %d\n", (int)handled, sink);
    return 0;
}
