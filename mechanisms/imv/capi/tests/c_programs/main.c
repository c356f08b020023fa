/*
 * The program: reads and sets values of its own and of the library, in one of these ways.
 *
 *   main set WRITER                          changes everything back and forth; WRITER is the expected way of writing
 *   main plugins PLUGIN                      loads and unloads the plugin while another thread changes values
 *   main closed mdwe|mseal [late]            after text has been closed for writing, by a constructor or later
 *   main born mdwe|mseal                     the same, closed before all constructors
 *
 * Prints the library's report about itself. On failure, prints the line that failed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "values.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

EACH_VALUE(IMPORT)
IMPORT_STATIC_KEY(key);
DEFINE_STATIC_IMV(int, own) = 1;
DEFINE_STATIC_IMV(long, own_long) = 1;
static struct dormouse_static_key own_key = DORMOUSE_STATIC_KEY_INIT;

static int add_one(int value, double scale)
{
    return (int)(value * scale) + 1;
}

static int add_two(int value, double scale)
{
    return (int)(value * scale) + 2;
}

DEFINE_STATIC_CALL(adjust, add_one);

#include "reads.h"

PUBLIC int library_differing(int is_second);
PUBLIC int second_differing(int is_second);
PUBLIC int reader_differing(int is_second);
PUBLIC int library_set(int is_second);
PUBLIC int reader_set(int is_second);

/* Values have sites on x86-64 only. */
#ifdef __x86_64__
#define SITES_MIN 60
#define VALUES_HAVE_SITES 1
#else
#define SITES_MIN 10
#define VALUES_HAVE_SITES 0
#endif

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static int all_differing(int is_second)
{
    return library_differing(is_second) + second_differing(is_second) + reader_differing(is_second) +
           differing(is_second);
}

static struct dormouse_imv_state state(void)
{
    struct dormouse_imv_state state;
    CHECK(dormouse_imv_status(&state) == 0);
    return state;
}

static void set_to_and_fro(const char *writer)
{
    CHECK(imv_read(own) == 7 && static_branch_unlikely(&own_key));
    for (int round = 0; round < 4; round++) {
        CHECK(all_differing(0) == 0);
        CHECK((round % 2 ? library_set(1) : reader_set(1)) == 0);
        CHECK(all_differing(1) == 0);
        CHECK((round % 2 ? set_all(0) : library_set(0)) == 0);
    }
    CHECK(all_differing(0) == 0);
    CHECK(imv_set(own_long, -5) == 0 && imv_read(own_long) == -5 && _imv_read(own_long) == -5);
    CHECK(imv_set(i16, -1) == 0 && imv_read(i16) == -1 && library_differing(0) != 0);

    struct dormouse_imv_state now = state();
    CHECK(strcmp(now.writer, writer) == 0 && now.reason[0] != 0 && now.reason[sizeof now.reason - 1] == 0);
    if (strcmp(writer, "mprotect") == 0)
        CHECK(now.objects > 0 && now.sites >= SITES_MIN && now.patched == now.sites);

    for (int round = 0; round < 3; round++) {
        CHECK(static_call(adjust)(10, 0.5) == 6);
        CHECK(static_call_update(adjust, add_two) == 0 && static_call(adjust)(10, 0.5) == 7);
        CHECK(static_call_update(adjust, add_one) == 0);
    }
#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(DORMOUSE_GENERIC)
    CHECK(static_call_is_direct(adjust) == (strcmp(writer, "mprotect") == 0));
#endif

    /* A value that is set often is a variable for that time. */
    CHECK(dormouse_imv_set_patch_rate(0) == 0);
    for (int round = 0; round < 200; round++)
        CHECK(imv_set(own_long, round) == 0 && imv_read(own_long) == round && imv_set(own, round) == 0 && imv_read(own) == round);
    CHECK(dormouse_imv_is_patched(&own) == 0 && dormouse_imv_is_patched(&own_long) == 0);
    CHECK(dormouse_imv_set_patch_rate(UINT32_MAX) == 0);
    CHECK(imv_set(own_long, -5) == 0 && imv_read(own_long) == -5 && imv_set(own, 7) == 0 && imv_read(own) == 7);

    /* Reads of a value in an assignment of the same value. */
    CHECK(imv_set(own, _imv_read(own)) == 0 && imv_set(own, imv_read(own)) == 0 && imv_read(own) == 7);
    struct dormouse_imv_change nested[] = {IMV_CHANGE(own, imv_read(own) + _imv_read(own) - 7)};
    CHECK(dormouse_imv_update(nested, 1) == 0 && imv_read(own) == 7);

    char unaligned[16] = {0};
    struct dormouse_imv_change bad[] = {IMV_CHANGE(own, 8), IMV_CHANGE(own, 9)};
    CHECK(dormouse_imv_set(unaligned, unaligned, 3) == -EINVAL);
    bad[1].operation = 77;
#ifndef DORMOUSE_GENERIC
    CHECK(dormouse_imv_set(unaligned + (((uintptr_t)unaligned & 1) ? 0 : 1), unaligned, 2) == -EINVAL);
    CHECK(dormouse_imv_update(bad, 2) == -EINVAL && imv_read(own) == 7);
#endif
    CHECK(dormouse_imv_update(bad, 0) == 0);
}

static void *keep_setting(void *stop)
{
    int is_second = 0;
    while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED) || is_second) {
        is_second = !is_second;
        CHECK(set_all(is_second) == 0);
        CHECK(differing(is_second) == 0);
    }
    return NULL;
}

static void load_and_unload(const char *plugin)
{
    int stop = 0;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, keep_setting, &stop) == 0);
    const size_t objects = state().objects;
    for (int round = 0; round < 40; round++) {
        void *handle = dlopen(plugin, RTLD_NOW | (round % 2 ? RTLD_LOCAL : RTLD_GLOBAL));
        if (!handle)
            puts(dlerror());
        CHECK(handle);
        int (*use)(void);
        *(void **)&use = dlsym(handle, "plugin_use");
        CHECK(use && use() == 0);
        CHECK(state().objects == objects + 2);
        CHECK(dlclose(handle) == 0);
        CHECK(state().objects == objects);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    CHECK(pthread_join(thread, NULL) == 0);

    void *handle = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    int (*plugin_differing)(int);
    *(void **)&plugin_differing = dlsym(handle, "plugin_differing");
    CHECK(plugin_differing(0) == 0 && set_all(1) == 0 && plugin_differing(1) == 0);
}

#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef PR_SET_MDWE
#define PR_SET_MDWE 65
#endif

static int seal_object(struct dl_phdr_info *object, size_t size, void *failed)
{
    (void)size;
    for (int index = 0; index < object->dlpi_phnum; index++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[index];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        const uintptr_t mask = (uintptr_t)sysconf(_SC_PAGESIZE) - 1;
        uintptr_t start = (object->dlpi_addr + header->p_vaddr) & ~mask;
        uintptr_t end = (object->dlpi_addr + header->p_vaddr + header->p_memsz + mask) & ~mask;
        if (syscall(SYS_mseal, start, end - start, 0L) != 0 && object->dlpi_addr != 0)
            *(int *)failed += strstr(object->dlpi_name, "vdso") == NULL && object->dlpi_name[0] != 0;
    }
    return 0;
}

/* Closes text for writing. Exits with 77 if the system does not support it. */
static void close_text(const char *what)
{
    if (strcmp(what, "mdwe") == 0) {
        if (prctl(PR_SET_MDWE, 1L, 0L, 0L, 0L) != 0)
            exit(77);
        return;
    }
    if (syscall(SYS_mseal, 0L, 0L, 0L) != 0)
        exit(77);
    int failed = 0;
    dl_iterate_phdr(seal_object, &failed);
    CHECK(failed == 0);
}

/* Runs before all constructors, including those of libraries. */
static void before_constructors(int argc, char **argv, char **environment)
{
    (void)environment;
    CHECK(differing(0) == 0 && imv_read(own) == 1 && imv_read(own_long) == 1 && !static_branch_unlikely(&own_key));
    if (argc > 2 && strcmp(argv[1], "born") == 0)
        close_text(argv[2]);
}
__attribute__((section(".preinit_array"), used)) static void (*before_all)(int, char **, char **) = before_constructors;

/* Runs before this object's sites are registered; libraries are patched already. */
__attribute__((constructor(101))) static void first_constructor(void)
{
    CHECK(imv_set(own, 7) == 0 && imv_read(own) == 7);
    CHECK(static_branch_enable(&own_key) == 0 && static_branch_unlikely(&own_key));
    const char *what = getenv("TEST_CLOSE_EARLY");
    if (what)
        close_text(what);
}

/* Checks that a change succeeds, or is refused and leaves every value unchanged. */
static void set_in_closed_text(const char *what, int is_late)
{
    CHECK(all_differing(0) == 0);
    if (is_late) {
        CHECK(set_all(1) == 0 && set_all(0) == 0);
        close_text(what);
    }
    CHECK(all_differing(0) == 0);
    int refused = 0;
#define SET_ONE(name, type, first, second)                                                                             \
    do {                                                                                                               \
        int error = imv_set(name, second);                                                                             \
        CHECK(error == 0 || error == -EACCES);                                                                         \
        const name##__imv_type expected = error ? (type)first : (type)second;                                                      \
        CHECK(imv_read(name) == expected && _imv_read(name) == expected);                                              \
        refused += error != 0;                                                                                         \
        if (!error)                                                                                                    \
            CHECK(imv_set(name, first) == 0);                                                                          \
        CHECK(all_differing(0) == 0);                                                                                  \
    } while (0);
    EACH_VALUE(SET_ONE)

    /* If one value is refused, all are, but keys are changed. Where values are loads, a gate that stays a nop is refused. */
    int error = set_all(1);
    if (error) {
        CHECK(error == -EACCES && (refused != 0) == VALUES_HAVE_SITES);
        CHECK(static_key_enabled(&key) && static_branch_unlikely(&key) == VALUES_HAVE_SITES);
        CHECK(static_branch_disable(&key) == 0);
        CHECK(all_differing(0) == 0);
    } else {
        CHECK(!refused && all_differing(1) == 0);
    }
    struct dormouse_imv_state now = state();
    CHECK(strcmp(now.writer, "mprotect") != 0);
    printf("refused %d\n", refused);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    CHECK(argc > 2 && differing(0) == 0 && imv_read(own) == 7 && static_branch_unlikely(&own_key));
    if (strcmp(argv[1], "set") == 0)
        set_to_and_fro(argv[2]);
    else if (strcmp(argv[1], "plugins") == 0)
        load_and_unload(argv[2]);
    else
        set_in_closed_text(argv[2], argc > 3);
    struct dormouse_imv_state now = state();
    printf("%s: %s; %zu objects, %zu sites, %zu patched\n", now.writer, now.reason, now.objects, now.sites, now.patched);
    return 0;
}
