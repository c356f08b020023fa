/*
 * Events of the engine `lttng-ust`: a session enables `lab:armed_*`, and never `lab:dormant_*`.
 * <lttng/tracepoint-event.h> reads this file several times.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER lab

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "lttng_ust_events.h"

#if !defined(LTTNG_UST_EVENTS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_UST_EVENTS_H

#include <lttng/tracepoint.h>
#include <stdint.h>

#include "cases.h"

LTTNG_UST_TRACEPOINT_EVENT(lab, armed_none, LTTNG_UST_TP_ARGS(), LTTNG_UST_TP_FIELDS())

LTTNG_UST_TRACEPOINT_EVENT_CLASS(
    lab, u64, LTTNG_UST_TP_ARGS(uint64_t, value), LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, value, value)))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, armed_u64, LTTNG_UST_TP_ARGS(uint64_t, value))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, dormant_u64, LTTNG_UST_TP_ARGS(uint64_t, value))

LTTNG_UST_TRACEPOINT_EVENT(
    lab, armed_ints3, LTTNG_UST_TP_ARGS(uint64_t, a, int64_t, b, uint32_t, c),
    LTTNG_UST_TP_FIELDS(
        lttng_ust_field_integer(uint64_t, a, a) lttng_ust_field_integer(int64_t, b, b) lttng_ust_field_integer(uint32_t, c, c)))

LTTNG_UST_TRACEPOINT_EVENT(
    lab, armed_str32, LTTNG_UST_TP_ARGS(const char *, text), LTTNG_UST_TP_FIELDS(lttng_ust_field_string(text, text)))

/* One event for each site. */
#define LAB_EVENTS(site) \
    LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, armed_site_##site, LTTNG_UST_TP_ARGS(uint64_t, value)) \
    LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, dormant_site_##site, LTTNG_UST_TP_ARGS(uint64_t, value))
LAB_SITES(LAB_EVENTS)
#undef LAB_EVENTS

#endif

#include <lttng/tracepoint-event.h>
