/* Prints its descriptors, listed in the given way, one line per listing. Programs that it executes do the same, the
 * first one in a child of vfork. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Number of a file that this program has opened itself, which is not printed. */
static int own = -1;

static int compare(const struct dirent **a, const struct dirent **b) {
    return atoi((*a)->d_name) - atoi((*b)->d_name);
}

static int is_printed(const struct dirent *entry) {
    return entry->d_name[0] != '.' && atoi(entry->d_name) != own;
}

static void list(const char *way, const char *path) {
    static struct dirent copies[1024], *all[1024], **entries = all;
    int count = 0;
    errno = 4242;
    if (!strcmp(way, "scandir")) {
        count = scandir(path, &entries, is_printed, compare);
    } else if (!strcmp(way, "scandirat")) {
        count = scandirat(-1, path, &entries, is_printed, compare);
    } else {
        DIR *directory = !strcmp(way, "opendir") ? opendir(path)
            : !strcmp(way, "open")               ? fdopendir(open(path, O_RDONLY | O_DIRECTORY))
                                                 : fdopendir(openat(-1, path, O_RDONLY | O_DIRECTORY));
        for (struct dirent *entry; (entry = readdir(directory));)
            if (is_printed(entry)) {
                copies[count] = *entry;
                all[count] = &copies[count];
                count++;
            }
        closedir(directory);
        qsort(all, count, sizeof *all, (int (*)(const void *, const void *))compare);
    }
    printf("%d:", errno);
    for (int i = 0; i < count; i++)
        printf(" %s", entries[i]->d_name);
    puts("");
    fflush(stdout);
}

/* Runs itself in a child of vfork, which lists its descriptors first if `lists` is set. */
static int run(char **arguments, int lists) {
    char *const again[] = {arguments[0], arguments[1], "child", NULL};
    int status = 1;
    pid_t child = vfork();
    if (child == 0) {
        if (!lists || open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC) >= 0)
            execv(arguments[0], again);
        _exit(1);
    }
    waitpid(child, &status, 0);
    return status;
}

int main(int count, char **arguments) {
    const char *way = arguments[1], *memory = getenv("DORMOUSE_MEMORY");
    int number = memory ? atoi(memory) : 1000;
    char path[64];
    if (count > 2) {
        list(way, "/dev/fd");
        return 0;
    }
    if (run(arguments, 1) != 0)
        return 1;
    /* A descriptor that a child of vfork closes stays open here. */
    if (memory && fcntl(number, F_GETFD) == -1)
        return 2;
    /* None of these opens the directory. */
    if (opendir(memory ? "/proc/self/fd/none" : "") || open("/proc/self/fdx", O_RDONLY) != -1 || open((char *)1, O_RDONLY) != -1)
        return 3;
    if (memory && fcntl(number, F_GETFD) == -1)
        return 4;
    list(way, "/proc/self/fd/");
    if (fcntl(number, F_GETFD) != -1)
        return 5;
    if (run(arguments, 0) != 0)
        return 6;
    /* A file of this program's own stays at that number. */
    own = dup3(0, number, O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/fdinfo", (int)getpid());
    list(way, path);
    return fcntl(number, F_GETFD) == -1 ? 7 : 0;
}
