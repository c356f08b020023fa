#include "common.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int evaluated;

int evaluate(int value)
{
    evaluated += 1;
    return value;
}

/* Bytes of every site as the linker left them. They are saved before any constructor runs. */
static unsigned char born[512][DORMOUSE_X86_BRANCH_LEN];
static size_t site_count;

static unsigned char *site_address(size_t index)
{
    const struct dormouse_site_record *record = &__start_dormouse_sites[index];
    return (unsigned char *)((intptr_t)&record->site + record->site);
}

static void remember_sites(void)
{
    site_count = (size_t)(__stop_dormouse_sites - __start_dormouse_sites);
    for (size_t index = 0; index < site_count && index < 512; index++)
        memcpy(born[index], site_address(index), DORMOUSE_X86_BRANCH_LEN);
}

__attribute__((section(".preinit_array"), used)) static void (*remember_sites_first)(void) = remember_sites;

/* Returns the number of sites that are not as expected: dormant, or armed with the bytes that they were born with. */
static int sites_that_differ(int asleep)
{
    static const unsigned char asleep_bytes[DORMOUSE_X86_BRANCH_LEN] = DORMOUSE_X86_NOP;
    int differ = 0;
    for (size_t index = 0; index < site_count; index++) {
        const unsigned char *wanted = asleep ? asleep_bytes : born[index];
        differ += born[index][0] != DORMOUSE_X86_JMP || memcmp(site_address(index), wanted, DORMOUSE_X86_BRANCH_LEN) != 0;
    }
    return differ;
}

enum { THREAD_COUNT = 3, HIT_COUNT = 2000 };

static void *hit(void *number)
{
    for (int i = 0; i < HIT_COUNT; i++)
        DORMOUSE_EVENT(load, hit, (thread, (int)(intptr_t)number), (i, i));
    return NULL;
}

static void plugin(const char *path, int round)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    void (*work)(int);
    *(void **)&work = dlsym(handle, "plugin_work");
    work(round);
    dlclose(handle);
    /* The plugin is really unloaded: its registrations must not be used again. */
    if (dlopen(path, RTLD_NOW | RTLD_NOLOAD)) {
        fprintf(stderr, "%s is still loaded\n", path);
        exit(1);
    }
}

/* main PLUGIN [asleep|awake]: runs everything, and checks the bytes of the sites if their state is given. */
int main(int argc, char **argv)
{
    DORMOUSE_EVENT(once, evaluated, (value, evaluate(42)));
    if (argc > 1)
        DORMOUSE_EVENT(app, tick);
    else
        DORMOUSE_EVENT(app, never);
    every_type();
    second_unit();
    shared_inline(1);
    cpp_unit();
    library_unit();

    pthread_t threads[THREAD_COUNT];
    for (intptr_t i = 0; i < THREAD_COUNT; i++)
        pthread_create(&threads[i], NULL, hit, (void *)i);
    for (int i = 0; i < THREAD_COUNT; i++)
        pthread_join(threads[i], NULL);

    for (int round = 0; round < 3; round++)
        plugin(argv[1], round);

    const size_t too_big = (size_t)1 << 33;
    DORMOUSE_EVENT(lost, big, (bytes, DORMOUSE_BYTES(argv, too_big)), (again, DORMOUSE_ARRAY(&too_big, too_big)));
    printf("evaluated %d\n", evaluated);
    if (argc > 2) {
        printf("sites %zu\n", site_count);
        printf("differ %d\n", sites_that_differ(strcmp(argv[2], "asleep") == 0));
    }
    return 0;
}
