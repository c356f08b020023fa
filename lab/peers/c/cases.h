/*
 * Parts that the engines in C share: the empty loops that other loops are compared with, and numbers of sites.
 *
 * Sites are functions of their own, each on its own cache line. They are called through a table in an order without
 * stride. The functions of `empty_sites_*` are the same functions without the tracepoint.
 */
#ifndef DORMOUSE_LAB_PEERS_CASES_H
#define DORMOUSE_LAB_PEERS_CASES_H

#include <lab_harness.h>

/* X(number) for each number of three digits, 000 to 999. LAB_TEN expands ten of them, LAB_HUNDRED a hundred. */
#define LAB_TEN(X, tens) \
    X(tens##0) X(tens##1) X(tens##2) X(tens##3) X(tens##4) X(tens##5) X(tens##6) X(tens##7) X(tens##8) X(tens##9)
#define LAB_HUNDRED(X, hundreds) \
    LAB_TEN(X, hundreds##0) LAB_TEN(X, hundreds##1) LAB_TEN(X, hundreds##2) LAB_TEN(X, hundreds##3) \
    LAB_TEN(X, hundreds##4) LAB_TEN(X, hundreds##5) LAB_TEN(X, hundreds##6) LAB_TEN(X, hundreds##7) \
    LAB_TEN(X, hundreds##8) LAB_TEN(X, hundreds##9)
#define LAB_SITES(X) \
    LAB_HUNDRED(X, 0) LAB_HUNDRED(X, 1) LAB_HUNDRED(X, 2) LAB_HUNDRED(X, 3) LAB_HUNDRED(X, 4) \
    LAB_HUNDRED(X, 5) LAB_HUNDRED(X, 6) LAB_HUNDRED(X, 7) LAB_HUNDRED(X, 8) LAB_HUNDRED(X, 9)

/* A site's function: not inlined, on a cache line of its own. */
#define LAB_SITE __attribute__((noinline, aligned(64))) static void

typedef void lab_site(uint64_t value);

/* Coprime to 10 and to 1,000: every site has its turn, and sites that are called one after another are not adjacent in
 * memory. */
#define LAB_STRIDE 377

/*
 * A loop whose body gets `number`, about which the compiler knows nothing. The body is repeated eight times in a row,
 * so that the loop's alignment hardly matters; the loop starts at or near a cache line. The number grows by `step` from
 * each of the eight to the next. With step zero the compiler cannot make a chain of additions of it, which would take
 * eight cycles in some loops and not in others.
 */
#define LAB_STEPPED_LOOP(name, step, body) \
    static inline __attribute__((always_inline)) void name##_body(uint64_t number) \
    { \
        LAB_OPAQUE(number); \
        body; \
    } \
    static void name(uint64_t iterations, uint64_t first) \
    { \
        uint64_t end = first + iterations; \
        uint64_t i = first; \
        __asm__ volatile(".balign 64"); \
        for (; end - i >= 8; i += 8) { \
            name##_body(i + 0 * step); \
            name##_body(i + 1 * step); \
            name##_body(i + 2 * step); \
            name##_body(i + 3 * step); \
            name##_body(i + 4 * step); \
            name##_body(i + 5 * step); \
            name##_body(i + 6 * step); \
            name##_body(i + 7 * step); \
        } \
        for (; i != end; i++) \
            name##_body(i); \
    }

#define LAB_LOOP(name, body) LAB_STEPPED_LOOP(name, 0, body)

/* A loop that calls the first `count` functions of a table. */
#define LAB_SITES_LOOP(name, table, count) LAB_STEPPED_LOOP(name, 1, table[number * LAB_STRIDE % count](number))

LAB_LOOP(run_empty, (void)0)

#define X(number) LAB_SITE empty_site_##number(uint64_t value) { LAB_OPAQUE(value); }
LAB_SITES(X)
#undef X
#define X(number) empty_site_##number,
static lab_site *const empty_sites[] = { LAB_SITES(X) };
#undef X
LAB_SITES_LOOP(run_empty_sites_10, empty_sites, 10)
LAB_SITES_LOOP(run_empty_sites_1000, empty_sites, 1000)

#define LAB_EMPTY_CASES \
    { "empty", run_empty, 0 }, { "empty_sites_10", run_empty_sites_10, 0 }, { "empty_sites_1000", run_empty_sites_1000, 0 }

/* Strings of 32 bytes that differ in the first byte. */
static const char lab_texts[8][33] = {
    "a0123456789abcdefghijklmnopqrstu", "b0123456789abcdefghijklmnopqrstu", "c0123456789abcdefghijklmnopqrstu",
    "d0123456789abcdefghijklmnopqrstu", "e0123456789abcdefghijklmnopqrstu", "f0123456789abcdefghijklmnopqrstu",
    "g0123456789abcdefghijklmnopqrstu", "h0123456789abcdefghijklmnopqrstu",
};

static inline __attribute__((unused)) const char *lab_text(uint64_t number)
{
    return lab_texts[number % 8];
}

#endif
