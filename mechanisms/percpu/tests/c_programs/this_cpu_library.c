/* A shared library with variables of its own; also a plugin that is loaded and unloaded. */
#include <dormouse/this_cpu.h>

#include <assert.h>

#include "this_cpu.h"

DEFINE_PER_CPU(uint64_t, in_library);
/* The section is larger than a page, and ends with a value that is not zero. */
DEFINE_STATIC_PER_CPU(char, filler[5000]);
DEFINE_PER_CPU(uint32_t, last) = 7;

void work_in_library(struct ledger *ledger)
{
    assert(this_cpu_add(in_library, 3) == 0);
    ledger->in_library += 3;
}

uint64_t sum_in_library(void)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        sum += per_cpu_read(in_library, cpu);
    return sum;
}

void *count_in_plugin(void)
{
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        assert(per_cpu_read(last, cpu) == 7 && per_cpu_ptr(filler, cpu)[0][4999] == 0 && per_cpu_read(in_library, cpu) == 0);
    assert(this_cpu_add_return(last, 1) == 8 && this_cpu_add(in_library, 1) == 0);
    this_cpu_ptr(filler)[0][4999] = 1;
    return per_cpu_ptr(last, 0);
}
