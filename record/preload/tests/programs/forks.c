/* A child, and its child, allocate; each prints its id and its allocations. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void work(size_t size, int rounds) {
    for (int round = 0; round < rounds; round++) {
        void *volatile block = malloc(size);
        free(block);
    }
    printf("%d %zu %d\n", (int)getpid(), size, rounds);
    fflush(stdout);
}

int main(void) {
    int status = 1;
    work(40001, 100);
    pid_t child = fork();
    if (child == 0) {
        work(40002, 200);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            work(40003, 300);
            _exit(0);
        }
        waitpid(grandchild, &status, 0);
        _exit(status != 0);
    }
    waitpid(child, &status, 0);
    work(40004, 400);
    return status != 0;
}
