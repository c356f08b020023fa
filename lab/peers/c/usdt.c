/*
 * Engine `usdt`: statically defined tracepoints of SystemTap's <sys/sdt.h>, dormant.
 *
 * A site is one nop and an ELF note with its name and the locations of its arguments. The arguments are computed even
 * if no tracer has attached. No semaphore guards them. Armed sites are left out: a probe on one becomes a uprobe, which
 * the engine `uprobe` measures.
 *
 * Source: sys/sdt.h of systemtap-sdt-dev; https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation.
 */
#include <sys/sdt.h>

#include "cases.h"

LAB_LOOP(run_dormant_none, DTRACE_PROBE(lab, none))
LAB_LOOP(run_dormant_u64, DTRACE_PROBE1(lab, u64, number))
LAB_LOOP(run_dormant_ints3, DTRACE_PROBE3(lab, ints3, number, -(int64_t)number, (uint32_t)number))
LAB_LOOP(run_dormant_str32, DTRACE_PROBE1(lab, str32, lab_text(number)))

#define X(number) LAB_SITE dormant_site_##number(uint64_t value) { LAB_OPAQUE(value); DTRACE_PROBE1(lab, site_##number, value); }
LAB_SITES(X)
#undef X
#define X(number) dormant_site_##number,
static lab_site *const dormant_sites[] = { LAB_SITES(X) };
#undef X
LAB_SITES_LOOP(run_dormant_sites_10, dormant_sites, 10)
LAB_SITES_LOOP(run_dormant_sites_1000, dormant_sites, 1000)

static const struct dormouse_lab_case cases[] = {
    LAB_EMPTY_CASES,
    { "dormant_none", run_dormant_none, 0 },
    { "dormant_u64", run_dormant_u64, 0 },
    { "dormant_ints3", run_dormant_ints3, 0 },
    { "dormant_str32", run_dormant_str32, 0 },
    { "dormant_sites_10", run_dormant_sites_10, 0 },
    { "dormant_sites_1000", run_dormant_sites_1000, 0 },
};

int main(void)
{
    return dormouse_lab_main("usdt", LAB_VERSION, cases, sizeof(cases) / sizeof(cases[0]), NULL);
}
