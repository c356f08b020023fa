/* Opens, reads, writes and closes in the given directory; fails if errno is not preserved. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define EXPECT(condition) do { if (!(condition)) { perror(#condition); return __LINE__ & 0x7f; } } while (0)

int main(int argc, char **argv) {
    volatile size_t three = 3;
    volatile int flags = O_RDONLY;
    char buffer[16];
    EXPECT(argc == 2 && chdir(argv[1]) == 0);
    errno = 0;
    EXPECT(open("no-such-file", O_RDONLY) == -1 && errno == ENOENT);
    EXPECT(open((const char *)8, O_RDONLY) == -1 && errno == EFAULT);
    int fd = open("made", O_CREAT | O_WRONLY | O_TRUNC, 0640);
    EXPECT(fd >= 0);
    EXPECT(write(fd, "hello", 5) == 5);
    EXPECT(read(fd, buffer, 1) == -1 && errno == EBADF);
    EXPECT(close(fd) == 0);
    EXPECT(close(fd) == -1 && errno == EBADF);
    fd = openat(AT_FDCWD, "made", flags); /* fortified: __openat_2 */
    EXPECT(fd >= 0);
    EXPECT(read(fd, buffer, three) == 3); /* fortified: __read_chk */
    EXPECT(close(fd) == 0);
    fd = open("made", flags); /* fortified: __open_2 */
    EXPECT(fd >= 0);
    EXPECT(close(fd) == 0);
    fd = creat("made-too", 0600);
    EXPECT(fd >= 0);
    EXPECT(close(fd) == 0);
    return 0;
}
