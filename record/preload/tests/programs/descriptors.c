/* Opens, copies and closes descriptors by many functions, in the given directory, and writes to each of them. Prints,
 * for each write, the descriptor, the number of bytes, and the file that the kernel reports for the descriptor. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char ledger[1 << 14];
static size_t length;
static size_t count = 100;

static void note(int fd) {
    char link[64], target[256] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, target, sizeof target - 1) < 0)
        exit(2);
    count++;
    if (write(fd, ledger, count) != (ssize_t)count)
        exit(3);
    length += snprintf(ledger + length, sizeof ledger - length, "%d %zu %s\n", fd, count, target);
}

#define EXPECT(condition) do { if (!(condition)) { perror(#condition); return __LINE__ & 0x7f; } } while (0)

int main(int argc, char **argv) {
    int ends[2], pair[2], fd, other;
    EXPECT(argc == 2 && chdir(argv[1]) == 0);
    /* A file that libc closes; a pipe gets its number. */
    FILE *stream = fopen("first", "w");
    fd = fileno(stream);
    note(fd);
    EXPECT(fclose(stream) == 0 && pipe(ends) == 0);
    note(ends[1]);
    /* dup2 over an open file, and dup3 over that. */
    fd = open("second", O_CREAT | O_WRONLY, 0600);
    other = open("third", O_CREAT | O_WRONLY, 0600);
    note(fd);
    EXPECT(dup2(other, fd) == fd);
    note(fd);
    EXPECT(dup3(ends[1], fd, O_CLOEXEC) == fd);
    note(fd);
    errno = 4242;
    EXPECT(dup2(other, other) == other && errno == 4242);
    EXPECT(dup2(900, fd) == -1 && errno == EBADF);
    note(fd);
    /* Copies above a number, and the same number again when it is free. */
    int high = fcntl(other, F_DUPFD, 50), higher = fcntl(high, F_DUPFD_CLOEXEC, 50);
    EXPECT(high == 50 && higher == 51 && fcntl(high, F_GETFD) == 0 && fcntl(higher, F_GETFD) == FD_CLOEXEC);
    note(higher);
    EXPECT(fcntl(fd, F_SETFL, O_APPEND) == 0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    EXPECT(fcntl(other, F_SETLK, &lock) == 0 && lock.l_type == F_WRLCK);
    EXPECT(close_range(50, 51, 0) == 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    note(pair[0]);
    note(pair[1]);
    EXPECT(dup2(pair[0], 50) == 50);
    note(50);
    closefrom(50);
    EXPECT(fcntl(50, F_GETFD) == -1 && errno == EBADF);
    /* A stream that is reopened with another file, and a stream of a descriptor. */
    stream = fdopen(dup(other), "w");
    EXPECT(stream);
    note(fileno(stream));
    EXPECT(freopen("fourth", "w", stream) == stream);
    note(fileno(stream));
    EXPECT(freopen(NULL, "a", stream) == stream);
    note(fileno(stream));
    EXPECT(freopen("no/such/file", "w", stream) == NULL && errno == ENOENT);
    /* A socket gets the number of a directory. */
    DIR *directory = fdopendir(open(".", O_RDONLY));
    EXPECT(directory && closedir(directory) == 0);
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    EXPECT(bind(listener, (struct sockaddr *)&address, size) == 0 && listen(listener, 2) == 0);
    EXPECT(getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    EXPECT(connect(client, (struct sockaddr *)&address, size) == 0);
    int served = accept(listener, NULL, NULL);
    EXPECT(served >= 0);
    note(client);
    note(served);
    EXPECT(close(served) == 0 && connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&address, size) == 0);
    served = accept4(listener, NULL, &(socklen_t){0}, SOCK_CLOEXEC);
    EXPECT(fcntl(served, F_GETFD) == FD_CLOEXEC);
    EXPECT(close(served) == 0 && close(other) == 0 && pipe2(pair, O_CLOEXEC) == 0);
    note(pair[1]);
    /* Streams without a descriptor, and descriptors without a stream. */
    errno = 4242;
    stream = fmemopen(NULL, 16, "w");
    EXPECT(stream && errno == 4242 && fclose(stream) == 0 && errno == 4242);
    EXPECT(fopen("no/such/file", "r") == NULL && errno == ENOENT);
    EXPECT(fdopen(900, "r") == NULL && errno == EBADF);
    EXPECT(write(1, ledger, length) == (ssize_t)length);
    return 0;
}
