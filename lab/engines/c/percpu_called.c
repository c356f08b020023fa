/* Additions to variables of each CPU whose sections are in the library: what `percpu.c` has inline. */
#define DORMOUSE_GENERIC
#include <dormouse/this_cpu.h>

#define COUNTERS 4096

void dormouse_lab_add_called(uint32_t index);
uint64_t dormouse_lab_sum_called(void);

DEFINE_STATIC_PER_CPU(uint64_t, variables[COUNTERS]);

void dormouse_lab_add_called(uint32_t index)
{
    this_cpu_add(variables[index], 1);
}

uint64_t dormouse_lab_sum_called(void)
{
    uint64_t sum = 0;
    for (uint32_t cpu = 0; cpu < per_cpu_count(); cpu++)
        for (size_t index = 0; index < COUNTERS; index++)
            sum += per_cpu_read(variables[index], cpu);
    return sum;
}
