/* What the units of the program say to one another. */
#ifndef THIS_CPU_H
#define THIS_CPU_H

#include <stdint.h>

#define THREADS 4
#define ROUNDS 100000u
#define MAGIC UINT64_C(0x600d)

/* What a thread has done. */
struct ledger {
    uint64_t magic, large, steps, nodes, popped, calls, in_library;
};

#ifdef __cplusplus
extern "C" {
#endif
void work_by_calls(struct ledger *ledger);
uint64_t sum_by_calls(void);
void work_in_library(struct ledger *ledger);
uint64_t sum_in_library(void);
void *count_in_plugin(void);
#ifdef __cplusplus
}
#endif

#endif
