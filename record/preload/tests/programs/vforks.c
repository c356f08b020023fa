/* Acts like a compiler driver: vfork, a few calls in the child, exec. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 20 };

int main(void) {
    int sink = open("/dev/null", O_WRONLY);
    int before = 0, wrong = 0;
    for (int i = 0; i < CHILDREN; i++) {
        int spare = dup(sink), status = 1;
        pid_t child = vfork();
        if (child == 0) {
            write(sink, "child", 5);
            close(spare);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        write(sink, "parent", 6);
        close(spare);
        waitpid(child, &status, 0);
        wrong |= status != 0;
    }
    /* One child whose exec fails, and one that ends at once. */
    for (int i = 0; i < 2; i++) {
        int status = 1;
        pid_t child = vfork();
        if (child == 0) {
            write(sink, "child", 5);
            if (i)
                execl("/no/such/program", "program", (char *)NULL);
            _exit(0);
        }
        write(sink, "parent", 6);
        waitpid(child, &status, 0);
        wrong |= status != 0;
    }
    printf("%d %d\n", (int)getpid(), sink);
    return wrong | before;
}
