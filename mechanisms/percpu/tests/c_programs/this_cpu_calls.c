/* A unit whose operations are calls, on variables of the same program. */
#define DORMOUSE_GENERIC
#include <dormouse/this_cpu.h>

#include <assert.h>

#include "this_cpu.h"

DEFINE_PER_CPU(uint32_t, calls);

void work_by_calls(struct ledger *ledger)
{
    assert(this_cpu_inc(calls) == 0);
    uint32_t seen = this_cpu_read(calls);
    if (this_cpu_cmpxchg(calls, seen, seen + 5) == seen)
        ledger->calls += 5;
    ledger->calls++;
}

uint64_t sum_by_calls(void)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        sum += per_cpu_read(calls, cpu);
    return sum;
}
