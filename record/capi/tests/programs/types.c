/* Included before event.h, because it makes bool a macro. */
#include <stdbool.h>

#include "common.h"

#include <stdio.h>

enum colour { RED = 1, GREEN = 2 };

void every_type(void)
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
    /* Keywords are allowed as names. */
    DORMOUSE_EVENT(types, default, (register, 1), (char, "c"));
    DORMOUSE_EVENT(types, pointers, (object, object), (same, (void *)object), (null, NULL),
                   (high, (void *)0xfedcba9876543210u));
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
