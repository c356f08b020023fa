/*
 * Engines `lttng-ust-filter` and `lttng-ust-procname`, which are one program: tracepoints of LTTng-UST, with filters.
 *
 * The library and the session are those of the engine `lttng-ust`. Each event that has a filter is enabled by
 * `lttng enable-event --userspace --filter`. The program runs a filter's bytecode before it writes an event. A second
 * session of the same daemon, with a channel like that of the first, records the events of `armed_u64_both` and rejects
 * those of `armed_u64_first`, which the first session records too.
 *
 * The events of `lttng-ust-procname` have the thread's name, a context of its session's channel.
 *
 * Rejected and accepted: events whose filter is false, and true; of `rejected_u64_10` the last of ten comparisons is
 * false. Dormant: an event of the same provider that is not enabled. An event that is not enabled would cost less than
 * one that a filter rejects, and neither arrives. So the program does not start unless the rejected events are enabled.
 *
 * Source: lttng-enable-event(1), lttng-ust(3); https://lttng.org/docs/v2.13/.
 */
#define _GNU_SOURCE /* program_invocation_short_name */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_ust_filter_events.h"

#include <errno.h>
#include <stdio.h>

#include "cases.h"

/* Texts of 32 bytes, the same as in lab/engines/src/filter.rs. */
static const char paths[4][33] = {
    "/var/lib/shop/orders/1831/items0",
    "/var/lib/shop/orders/1832/items1",
    "/var/lib/shop/orders/1833/items2",
    "/var/lib/shop/orders/1834/items3",
};

static inline const char *path_of(uint64_t number)
{
    return paths[number % 4];
}

static inline void choose_path(uint64_t number)
{
    const char *path = path_of(number);
    LAB_OPAQUE(path);
}

LAB_LOOP(run_empty_path, choose_path(number))
LAB_LOOP(run_armed_u64, lttng_ust_tracepoint(lab, armed_u64, number))
LAB_LOOP(run_armed_u64_both, lttng_ust_tracepoint(lab, armed_u64_both, number))
LAB_LOOP(run_armed_u64_first, lttng_ust_tracepoint(lab, armed_u64_first, number))
LAB_LOOP(run_rejected_u64, lttng_ust_tracepoint(lab, rejected_u64, number))
LAB_LOOP(run_accepted_u64, lttng_ust_tracepoint(lab, accepted_u64, number))
LAB_LOOP(run_rejected_u64_10, lttng_ust_tracepoint(lab, rejected_u64_10, number))
LAB_LOOP(run_dormant_u64, lttng_ust_tracepoint(lab, dormant_u64, number))
LAB_LOOP(run_armed_path, lttng_ust_tracepoint(lab, armed_path, number, path_of(number)))
LAB_LOOP(run_rejected_path, lttng_ust_tracepoint(lab, rejected_path, number, path_of(number)))
LAB_LOOP(run_accepted_path, lttng_ust_tracepoint(lab, accepted_path, number, path_of(number)))

static const struct dormouse_lab_case cases[] = {
    LAB_EMPTY_CASES,
    { "empty_path", run_empty_path, 0 },
    { "armed_u64", run_armed_u64, 1 },
    { "armed_u64_both", run_armed_u64_both, 1 },
    { "armed_u64_first", run_armed_u64_first, 1 },
    { "rejected_u64", run_rejected_u64, 0 },
    { "accepted_u64", run_accepted_u64, 1 },
    { "rejected_u64_10", run_rejected_u64_10, 0 },
    { "dormant_u64", run_dormant_u64, 0 },
    { "armed_path", run_armed_path, 1 },
    { "rejected_path", run_rejected_path, 0 },
    { "accepted_path", run_accepted_path, 1 },
};

int main(void)
{
    if (!lttng_ust_tracepoint_enabled(lab, rejected_u64) || !lttng_ust_tracepoint_enabled(lab, rejected_u64_10) ||
        !lttng_ust_tracepoint_enabled(lab, rejected_path)) {
        fprintf(stderr, "%s: the rejected events are not enabled\n", program_invocation_short_name);
        return 2;
    }
    return dormouse_lab_main(program_invocation_short_name, LAB_VERSION, cases, sizeof(cases) / sizeof(cases[0]), NULL);
}
