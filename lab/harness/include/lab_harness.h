/*
 * The measuring side of the lab for engines in C and C++: a table of loops, and a main that times them on request. Link
 * libdormouse_lab_harness.a. The Rust crate's documentation describes the protocol.
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
 * Answers requests until input ends. `arrived` ends the tracing and returns the number of events that arrived, or -1 if
 * it is unknown; it may be NULL. The command line is read from the process itself. Returns the exit code.
 */
int dormouse_lab_main(const char *name, const char *version, const struct dormouse_lab_case *cases, size_t count,
                      int64_t (*arrived)(void));

/* Hides a value from the compiler, so that it cannot optimise the loop away. */
#define LAB_OPAQUE(value) __asm__ volatile("" : "+r"(value) : : "memory")

#ifdef __cplusplus
}
#endif

#endif
