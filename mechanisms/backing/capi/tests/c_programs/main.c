/* Memory of every kind, and the library's reports about it. C11 and C++11. */
/* memfd_create() */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/backing.h>

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static size_t os_page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static long faults(void)
{
    struct rusage usage;
    assert(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt + usage.ru_majflt;
}

/* Writes to every page, and returns the number of faults. */
static long faults_of_writing(unsigned char *base, size_t size_bytes)
{
    long before = faults();
    for (size_t offset = 0; offset < size_bytes; offset += os_page())
        *(volatile unsigned char *)(base + offset) = 7;
    return faults() - before;
}

static struct dormouse_backing_options options_of(size_t size_bytes, unsigned flags, unsigned huge)
{
    struct dormouse_backing_options options;
    memset(&options, 0, sizeof options);
    options.size_bytes = size_bytes;
    options.flags = flags;
    options.huge = huge;
    return options;
}

static void check_arguments(void)
{
    assert(strcmp(dormouse_backing_why(), "") == 0);
    const struct dormouse_backing_options wrong[] = {
        options_of(0, 0, 0),       options_of(SIZE_MAX, 0, 0),
        options_of(4096, 32, 0),   options_of(4096, DORMOUSE_BACKING_NEAR_CPU | DORMOUSE_BACKING_AT_CPU, 0),
        options_of(4096, 0, 4),
    };
    for (size_t index = 0; index < sizeof wrong / sizeof *wrong; index++) {
        errno = 0;
        assert(dormouse_backing_create(NULL, &wrong[index]) == NULL && errno == EINVAL);
        assert(strlen(dormouse_backing_why()) > 0);
    }
    struct dormouse_backing_options options = options_of((size_t)64 << 40, 0, 0);
    errno = 0;
    assert(dormouse_backing_create(NULL, &options) == NULL && errno == ENOMEM);
    assert(strstr(dormouse_backing_why(), "are available here"));
    options = options_of(4096, DORMOUSE_BACKING_NEAR_CPU, 0);
    options.cpu = 999999;
    errno = 0;
    assert(dormouse_backing_create("of-no-processor", &options) == NULL && errno == ENODEV);
    errno = 0;
    assert(dormouse_backing_attach(-1, 0) == NULL && errno == EINVAL);
    int file = memfd_create("unsealed", MFD_ALLOW_SEALING);
    assert(file >= 0 && ftruncate(file, 4096) == 0);
    errno = 0;
    assert(dormouse_backing_attach(file, 0) == NULL && errno == EINVAL);
    assert(strstr(dormouse_backing_why(), "not sealed"));
    close(file);
    dormouse_backing_destroy(NULL);
}

static void check_pool(const char *name, unsigned huge)
{
    struct dormouse_backing_options options = options_of(4 * MIB, DORMOUSE_BACKING_GUARD, huge);
    options.capacity_bytes = 8 * MIB;
    struct dormouse_backing_pool *pool = dormouse_backing_create(name, &options);
    assert(pool != NULL);
    unsigned char *base = (unsigned char *)dormouse_backing_base(pool);
    assert(dormouse_backing_size_bytes(pool) == 4 * MIB && dormouse_backing_capacity_bytes(pool) == 8 * MIB);
    assert(dormouse_pages_check(base, 4 * MIB, NULL) == 0);
    assert(faults_of_writing(base, 4 * MIB) == 0);

    struct dormouse_backing_obtained obtained;
    assert(dormouse_backing_ask(pool, &obtained) == 0);
    assert(obtained.size_bytes == 4 * MIB && obtained.missing_bytes == 0);
    assert(obtained.hugetlb_bytes + obtained.thp_bytes + obtained.small_bytes == 4 * MIB);
    assert(obtained.nodes == DORMOUSE_BACKING_NODES_NOT_ASKED);
    if (huge == DORMOUSE_BACKING_HUGE_NEVER)
        assert(obtained.small_bytes == 4 * MIB);

    assert(dormouse_backing_grow(pool, 9 * MIB) == -EINVAL && dormouse_backing_grow(pool, MIB) == -EINVAL);
    assert(dormouse_backing_grow(pool, 6 * MIB) == 0 && dormouse_backing_size_bytes(pool) == 6 * MIB);
    assert(dormouse_backing_base(pool) == base && base[os_page()] == 7);
    assert(faults_of_writing(base, 6 * MIB) == 0);
    assert(dormouse_backing_prefault(pool, 0, 7 * MIB) == -EINVAL && dormouse_backing_prefault(pool, 5, MIB) == 0);

    if (name == NULL) {
        assert(dormouse_backing_file(pool) == -EBADF);
    } else {
        struct dormouse_backing_pool *other = dormouse_backing_attach(dormouse_backing_file(pool), 1);
        assert(other != NULL && dormouse_backing_size_bytes(other) == 8 * MIB);
        unsigned char *theirs = (unsigned char *)dormouse_backing_base(other);
        assert(theirs != base && theirs[os_page()] == 7);
        assert(faults_of_writing(theirs, 8 * MIB) == 0);
        assert(dormouse_backing_grow(other, 8 * MIB) == -EINVAL && dormouse_backing_prefault(other, 0, 1) == -EINVAL);
        assert(dormouse_backing_file(other) == -EBADF);
        assert(ftruncate(dormouse_backing_file(pool), 0) == -1 && errno == EPERM);
        dormouse_backing_destroy(other);
    }
    dormouse_backing_destroy(pool);
}

static void check_guard(void)
{
    struct dormouse_backing_options options = options_of(2 * MIB, DORMOUSE_BACKING_GUARD, 0);
    struct dormouse_backing_pool *pool = dormouse_backing_create(NULL, &options);
    assert(pool != NULL);
    unsigned char *base = (unsigned char *)dormouse_backing_base(pool);
    unsigned char *const places[] = { base, base + 2 * MIB - 1, base - 1, base + 2 * MIB };
    for (int index = 0; index < 4; index++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit none = { 0, 0 };
            (void)setrlimit(RLIMIT_CORE, &none);
            *(volatile unsigned char *)places[index] = 1;
            _exit(0);
        }
        int status = 0;
        assert(child > 0 && waitpid(child, &status, 0) == child);
        assert(index < 2 ? status == 0 : (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV));
    }
    dormouse_backing_destroy(pool);
}

static void check_buffers(void)
{
    struct dormouse_backing_options options = options_of(16 * os_page(), DORMOUSE_BACKING_LAZY, DORMOUSE_BACKING_HUGE_NEVER);
    struct dormouse_backing_pool *pool = dormouse_backing_create(NULL, &options);
    assert(pool != NULL);
    unsigned char *base = (unsigned char *)dormouse_backing_base(pool);
    struct dormouse_pages_missing missing;
    assert(dormouse_pages_check(base, 16 * os_page(), &missing) == -EFAULT);
    assert(missing.size_bytes == 16 * os_page() && missing.untouched_bytes == 16 * os_page() && missing.first == base);
    assert(dormouse_pages_check(base, 0, &missing) == 0 && dormouse_pages_check(NULL, 0, NULL) == 0);
    for (int page = 0; page < 16; page++)
        if (page != 5)
            base[page * os_page()] = 1;
    assert(*(volatile unsigned char *)(base + 5 * os_page()) == 0);
    /* A kernel that does not report the zero page yields another error, not success. */
    int answer = dormouse_pages_check(base, 16 * os_page(), &missing);
    assert(answer == -EFAULT || answer == -EOPNOTSUPP);
    assert((answer == -EFAULT ? missing.zero_bytes : missing.unknown_bytes) == os_page());
    assert(missing.first == base + 5 * os_page() && missing.untouched_bytes == 0 && missing.swapped_bytes == 0);
    assert(strlen(dormouse_backing_why()) > 0);
    assert(dormouse_pages_check(base, 5 * os_page(), NULL) == 0);
    assert(dormouse_backing_prefault(pool, 5 * os_page(), 1) == 0);
    assert(dormouse_pages_check(base, 16 * os_page(), NULL) == 0);
    DORMOUSE_ASSERT_BACKED(base, 16 * os_page());
    dormouse_backing_destroy(pool);
}

/* Returns the bytes of this process's memory that are in pages of its own, and not those of a file: `RssAnon`. */
static size_t own_bytes(void)
{
    FILE *file = fopen("/proc/self/status", "r");
    assert(file != NULL);
    char line[256];
    size_t kib = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %zu", &kib) == 1)
            break;
    fclose(file);
    return kib << 10;
}

/* Populates a buffer of which nothing is present, and returns how much memory this process has more. */
static size_t populated_bytes(unsigned char *buffer, size_t size_bytes)
{
    unsigned char present = 0;
    assert(mincore((void *)((uintptr_t)(buffer + size_bytes / 2) & -(uintptr_t)os_page()), 1, &present) == -1 || !(present & 1));
    size_t before = own_bytes();
    assert(dormouse_pages_populate(buffer, size_bytes) == 0);
    size_t more = own_bytes() - before;
    DORMOUSE_ASSERT_BACKED(buffer, size_bytes);
    assert(faults_of_writing(buffer, size_bytes) == 0);
    return more;
}

static size_t populated_on_the_stack(void)
{
    unsigned char samples[4 * MIB];
    return populated_bytes(samples, sizeof samples);
}

static unsigned char frame[8 * MIB];

static void check_populating(void)
{
    size_t edge = 64 << 10;
    assert(populated_on_the_stack() >= 4 * MIB - edge);
    assert(populated_bytes(frame, sizeof frame) >= 8 * MIB - edge);
    unsigned char *table = (unsigned char *)calloc(16, MIB);
    assert(table != NULL && populated_bytes(table + 5, 16 * MIB - 5) >= 16 * MIB - edge);
    assert(table[4] == 0 && table[5] == 7);
    free(table);
    assert(dormouse_pages_populate(NULL, 0) == 0);

    int prot = PROT_READ | PROT_WRITE;
    unsigned char *mapped = (unsigned char *)mmap(NULL, 4 * MIB, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(mapped != MAP_FAILED && mprotect(mapped + MIB, MIB, PROT_READ) == 0 && munmap(mapped + 3 * MIB, MIB) == 0);
    size_t before = own_bytes();
    assert(dormouse_pages_populate(mapped, 2 * MIB) == -EACCES && strstr(dormouse_backing_why(), "read-only"));
    assert(dormouse_pages_populate(mapped + 2 * MIB, 2 * MIB) == -EFAULT && strstr(dormouse_backing_why(), "nothing is mapped"));
    assert(dormouse_pages_populate(mapped, SIZE_MAX) == -EINVAL);
    assert(own_bytes() < before + edge);
    assert(munmap(mapped, 3 * MIB) == 0);
}

static void check_locks(void)
{
    struct dormouse_backing_options options = options_of(4 * os_page(), DORMOUSE_BACKING_LOCK, 0);
    struct dormouse_backing_pool *pool = dormouse_backing_create(NULL, &options);
    if (pool == NULL) {
        assert(errno == EPERM && strstr(dormouse_backing_why(), "ulimit -l"));
        return;
    }
    assert(dormouse_pages_check(dormouse_backing_base(pool), 4 * 4096, NULL) == 0);
    dormouse_backing_destroy(pool);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "assert") == 0) {
        static unsigned char written[MIB], untouched[MIB];
        memset(written, 1, sizeof written);
        DORMOUSE_ASSERT_BACKED(written, sizeof written);
        puts("written");
        fflush(stdout);
        DORMOUSE_ASSERT_BACKED(untouched, sizeof untouched);
        puts("not reached");
        return 0;
    }
    check_arguments();
    check_populating();
    check_guard();
    for (unsigned huge = DORMOUSE_BACKING_HUGE_AS_CONFIGURED; huge <= DORMOUSE_BACKING_HUGE_PREFER; huge++) {
        check_pool(NULL, huge);
        check_pool("dormouse-test", huge);
    }
    check_buffers();
    check_locks();
    puts("fine");
    return 0;
}
