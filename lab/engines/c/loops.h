/*
 * Loops of the engines in C, as `repeat!` and the loops of `percpu.rs` are in Rust: the body eight times in a row, so that
 * the loop's alignment hardly matters, from the start of a cache line.
 */
#ifndef DORMOUSE_LAB_LOOPS_H
#define DORMOUSE_LAB_LOOPS_H

#include <lab_harness.h>

/* A loop whose body gets `number`, about which the compiler knows nothing. */
#define LAB_REPEAT(name, prepare, body)                                                                                \
    static void name(uint64_t iterations, uint64_t first)                                                              \
    {                                                                                                                  \
        uint64_t end = first + iterations, next = first, number;                                                       \
        prepare;                                                                                                       \
        __asm__ volatile(".balign 64");                                                                                \
        for (; end - next >= 8; next += 8) {                                                                           \
            LAB_ONCE(body) LAB_ONCE(body) LAB_ONCE(body) LAB_ONCE(body)                                                \
            LAB_ONCE(body) LAB_ONCE(body) LAB_ONCE(body) LAB_ONCE(body)                                                \
        }                                                                                                              \
        for (; next != end; next++)                                                                                    \
            LAB_ONCE(body)                                                                                             \
    }
#define LAB_ONCE(body)                                                                                                 \
    {                                                                                                                  \
        number = next;                                                                                                 \
        LAB_OPAQUE(number);                                                                                            \
        body;                                                                                                          \
    }

/* A loop whose body is not repeated. */
#define LAB_LOOP(name, prepare, body)                                                                                  \
    static void name(uint64_t iterations, uint64_t first)                                                              \
    {                                                                                                                  \
        uint64_t end = first + iterations, next = first, number;                                                       \
        prepare;                                                                                                       \
        __asm__ volatile(".balign 64");                                                                                \
        for (; next != end; next++)                                                                                    \
            LAB_ONCE(body)                                                                                             \
    }

#define LAB_COUNT(array) (sizeof(array) / sizeof(*(array)))

#endif
