#include "common.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

int evaluated;

int evaluate(int value)
{
    evaluated += 1;
    return value;
}

/* The bytes of every site as the linker left them: this runs before any constructor. */
static unsigned char born[512][DORMOUSE_X86_SITE_LEN];
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
        memcpy(born[index], site_address(index), DORMOUSE_X86_SITE_LEN);
}

__attribute__((section(".preinit_array"), used)) static void (*remember_sites_first)(void) = remember_sites;

/* How many sites are not what they should be: `byte`, then the four bytes that they were born with. */
static int sites_that_differ(unsigned char byte)
{
    int differ = 0;
    for (size_t index = 0; index < site_count; index++) {
        const unsigned char *now = site_address(index);
        differ += born[index][0] != DORMOUSE_X86_JMP || now[0] != byte || memcmp(now + 1, born[index] + 1, 4) != 0;
    }
    return differ;
}

enum colour { RED = 1, GREEN = 2 };

static void every_type(void)
{
    char array[] = "array";
    const char *const text = "text";
    const char *const no_text = NULL;
    enum colour colour = GREEN;
    int *object = &evaluated;
    const volatile short half = -7;
    struct {
        unsigned three : 3;
    } bits = {5};

    DORMOUSE_EVENT(types, scalars, (b, (bool)true), (c, (char)'x'), (sc, (signed char)-1), (uc, (unsigned char)255),
                   (s, half), (us, (unsigned short)65535), (i, -100000), (u, 4000000000u), (l, -5000000000L),
                   (ul, 18446744073709551615UL), (ll, -5LL), (ull, 5ULL), (z, sizeof array), (f, 1.5f), (d, -2.25),
                   (e, colour), (bits, (unsigned)bits.three));
    DORMOUSE_EVENT(types, texts, (literal, "literal"), (text, text), (array, array), (none, no_text), (after, 7));
    DORMOUSE_EVENT(types, pointers, (object, object), (same, (void *)object), (null, NULL), (high, (void *)0xfedcba9876543210));
    printf("object %llu\n", (unsigned long long)(uintptr_t)object);

    const int ints[] = {1, -2, 3};
    const double doubles[] = {0.5, -0.5};
    const bool bools[] = {true, false};
    uint8_t bytes[] = {9, 8, 7, 6, 5, 4, 3, 2, 1};
    void *pointers[] = {NULL, (void *)16};
    DORMOUSE_EVENT(types, runs, (ints, DORMOUSE_ARRAY(ints, 3)), (none, DORMOUSE_ARRAY(ints, 0)),
                   (doubles, DORMOUSE_ARRAY(doubles, 2)), (bools, DORMOUSE_ARRAY(bools, 2)),
                   (bytes, DORMOUSE_BYTES(bytes, sizeof bytes)), (sequence, DORMOUSE_ARRAY(bytes, 2)),
                   (pointers, DORMOUSE_ARRAY(pointers, 2)), (nothing, DORMOUSE_BYTES(NULL, 0)), (after, (char)1));
    DORMOUSE_EVENT(types, many, (f1, 1), (f2, "2"), (f3, 3), (f4, 4), (f5, 5), (f6, 6), (f7, 7), (f8, 8), (f9, 9),
                   (f10, 10), (f11, 11), (f12, 12), (f13, 13), (f14, 14), (f15, 15), (f16, 16), (f17, 17), (f18, 18),
                   (f19, 19), (f20, 20), (f21, 21), (f22, 22), (f23, 23), (f24, 24), (f25, 25), (f26, 26), (f27, 27),
                   (f28, 28), (f29, 29), (f30, 30), (f31, 31), (f32, "32"));
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
    /* It is really gone: what it registered must not be looked at again. */
    if (dlopen(path, RTLD_NOW | RTLD_NOLOAD)) {
        fprintf(stderr, "%s is still loaded\n", path);
        exit(1);
    }
}

/* main PLUGIN [BYTE]: runs everything, and checks the bytes of the sites if it is told what they begin with. */
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
        printf("differ %d\n", sites_that_differ((unsigned char)strtol(argv[2], NULL, 16)));
    }
    return 0;
}
