/* Variables before the program's constructors, and on each CPU that the process may run on. C11 and C++11. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/this_cpu.h>

#include "without.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

DEFINE_PER_CPU(uint64_t, hits) = 41;
DEFINE_PER_CPU(struct dormouse_percpu_list, list);

static struct dormouse_percpu_node node;
static int was_before;

/* There are no copies yet: nothing changes. */
static void before(void)
{
    assert(per_cpu_count() == 0);
    assert(this_cpu_add(hits, 1) == -ENOMEM && this_cpu_write(hits, 1) == -ENOMEM);
    assert(this_cpu_add_return(hits, 1) == 0 && this_cpu_xchg(hits, 1) == 0 && this_cpu_cmpxchg(hits, 41, 1) == 0);
    assert(this_cpu_read(hits) == 41);
    this_cpu_push(list, &node);
    assert(this_cpu_pop(list) == NULL);
    was_before = 1;
}
__attribute__((section(".preinit_array"), used)) static void (*before_constructors)(void) = before;

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "without") == 0)
        without_rseq(argv[0]);
    assert(was_before);
    cpu_set_t allowed, one;
    assert(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        assert(sched_setaffinity(0, sizeof one, &one) == 0);
        assert(cpu < per_cpu_count());
        assert(this_cpu_inc(hits) == 0 && per_cpu_read(hits, cpu) == 42);
        assert(this_cpu_pop(list) == NULL);
        this_cpu_push(list, &node);
        assert(this_cpu_pop(list) == &node);
    }
    puts("fine");
    return 0;
}
