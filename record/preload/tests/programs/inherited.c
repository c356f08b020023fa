/* A parent opens a file and forks; each child, and its child, read it after the parent has opened another file in its
   place. Each read is printed: process, descriptor, bytes, and the file that the kernel reports for the descriptor. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void use(int fd) {
    char bytes[16], name[64], path[4096] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    if (readlink(name, path, sizeof path - 1) < 0) _exit(2);
    int count = (int)read(fd, bytes, sizeof bytes);
    printf("%d %d %d %s\n", (int)getpid(), fd, count, strrchr(path, '/') + 1);
    fflush(stdout);
}

static int opened(const char *name) {
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    if (fd < 0 || write(fd, "0123456789", 10) != 10 || lseek(fd, 0, SEEK_SET) != 0) exit(3);
    return fd;
}

int main(int count, char **arguments) {
    int ends[2], status = 0;
    if (count != 2 || chdir(arguments[1]) != 0 || pipe(ends) != 0) return 1;
    for (int round = 0; round < 5; round++) {
        char name[] = "first0", other[] = "other0", byte;
        name[5] += round;
        other[5] += round;
        int fd = opened(name);
        pid_t child = fork();
        if (child == 0) {
            read(ends[0], &byte, 1);
            pid_t grandchild = fork();
            if (grandchild == 0) {
                use(fd);
                _exit(0);
            }
            waitpid(grandchild, &status, 0);
            use(fd);
            _exit(status != 0);
        }
        close(fd);
        if (opened(other) != fd) return 4;
        write(ends[1], "", 1);
        waitpid(child, &status, 0);
        if (status != 0) return 5;
        use(fd);
        close(fd);
    }
    return 0;
}
