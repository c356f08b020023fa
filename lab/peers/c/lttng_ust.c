/*
 * Engine `lttng-ust`: tracepoints of LTTng-UST, used as in its manual.
 *
 * The library is the distribution's, linked dynamically; probes are linked into the program, not loaded. The session is
 * the lab's (dormouse_testing::lttng): buffers for each user and CPU, four sub-buffers of 1 MiB, in discard mode (the
 * consumer daemon writes them to disk) or overwrite mode (a snapshot session); no contexts, the default clock. Its
 * daemon starts before the program, so that all events are enabled when main starts. The lab counts the events that
 * arrived: babeltrace2 reads the trace.
 *
 * Dormant: the events `dormant_*` of the same provider, in the same session, are not enabled.
 *
 * Source: lttng-ust(3), lttng(1); https://lttng.org/docs/v2.13/.
 */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "lttng_ust_events.h"

#include "cases.h"

LAB_LOOP(run_armed_none, lttng_ust_tracepoint(lab, armed_none))
LAB_LOOP(run_armed_u64, lttng_ust_tracepoint(lab, armed_u64, number))
LAB_LOOP(run_armed_ints3, lttng_ust_tracepoint(lab, armed_ints3, number, -(int64_t)number, (uint32_t)number))
LAB_LOOP(run_armed_str32, lttng_ust_tracepoint(lab, armed_str32, lab_text(number)))
LAB_LOOP(run_dormant_u64, lttng_ust_tracepoint(lab, dormant_u64, number))

#define X(site) LAB_SITE armed_site_##site(uint64_t value) { LAB_OPAQUE(value); lttng_ust_tracepoint(lab, armed_site_##site, value); }
LAB_SITES(X)
#undef X
#define X(site) LAB_SITE dormant_site_##site(uint64_t value) { LAB_OPAQUE(value); lttng_ust_tracepoint(lab, dormant_site_##site, value); }
LAB_SITES(X)
#undef X
#define X(site) armed_site_##site,
static lab_site *const armed_sites[] = { LAB_SITES(X) };
#undef X
#define X(site) dormant_site_##site,
static lab_site *const dormant_sites[] = { LAB_SITES(X) };
#undef X
LAB_SITES_LOOP(run_armed_sites_10, armed_sites, 10)
LAB_SITES_LOOP(run_armed_sites_1000, armed_sites, 1000)
LAB_SITES_LOOP(run_dormant_sites_10, dormant_sites, 10)
LAB_SITES_LOOP(run_dormant_sites_1000, dormant_sites, 1000)

static const struct dormouse_lab_case cases[] = {
    LAB_EMPTY_CASES,
    { "armed_none", run_armed_none, 1 },
    { "armed_u64", run_armed_u64, 1 },
    { "armed_ints3", run_armed_ints3, 1 },
    { "armed_str32", run_armed_str32, 1 },
    { "armed_sites_10", run_armed_sites_10, 1 },
    { "armed_sites_1000", run_armed_sites_1000, 1 },
    { "dormant_u64", run_dormant_u64, 0 },
    { "dormant_sites_10", run_dormant_sites_10, 0 },
    { "dormant_sites_1000", run_dormant_sites_1000, 0 },
};

int main(void)
{
    return dormouse_lab_main("lttng-ust", LAB_VERSION, cases, sizeof(cases) / sizeof(cases[0]), NULL);
}
