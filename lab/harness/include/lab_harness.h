/*
 * The measuring side of the lab for engines in C and C++: a table of loops, and a main that times them as it is told to.
 * Link libdormouse_lab_harness.a. The protocol is described in the Rust crate's documentation.
 */
#ifndef DORMOUSE_LAB_HARNESS_H
#define DORMOUSE_LAB_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dormouse_lab_case {
    const char *name;
    /* Runs the body `iterations` times, with the numbers `first`, `first` + 1, … */
    void (*run)(uint64_t iterations, uint64_t first);
    uint64_t events_per_iteration;
};

/*
 * Meets requests until input ends. `arrived` ends the tracing and counts the events that arrived, or returns -1 where that
 * cannot be told; it may be NULL. The command line is read from the process itself. Returns the exit code.
 */
int dormouse_lab_main(const char *name, const char *version, const struct dormouse_lab_case *cases, size_t count,
                      int64_t (*arrived)(void));

/* Keeps the compiler from computing a loop away. */
#define LAB_OPAQUE(value) __asm__ volatile("" : "+r"(value) : : "memory")

#ifdef __cplusplus
}
#endif

#endif
