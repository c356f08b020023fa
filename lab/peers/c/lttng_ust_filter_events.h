/*
 * Events of the engine `lttng-ust-filter`: a session enables `lab:armed_*`, each `lab:rejected_*` and `lab:accepted_*`
 * with a filter of its own, and never `lab:dormant_*`; a second one enables `lab:armed_u64_both`, and
 * `lab:armed_u64_first` with a filter. <lttng/tracepoint-event.h> reads this file several times.
 */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER lab

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "lttng_ust_filter_events.h"

#if !defined(LTTNG_UST_FILTER_EVENTS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_UST_FILTER_EVENTS_H

#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_EVENT_CLASS(
    lab, u64, LTTNG_UST_TP_ARGS(uint64_t, number), LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, number, number)))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, armed_u64, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, armed_u64_both, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, armed_u64_first, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, rejected_u64, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, accepted_u64, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, rejected_u64_10, LTTNG_UST_TP_ARGS(uint64_t, number))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, u64, lab, dormant_u64, LTTNG_UST_TP_ARGS(uint64_t, number))

LTTNG_UST_TRACEPOINT_EVENT_CLASS(
    lab, path, LTTNG_UST_TP_ARGS(uint64_t, number, const char *, path),
    LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(uint64_t, number, number) lttng_ust_field_string(path, path)))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, path, lab, armed_path, LTTNG_UST_TP_ARGS(uint64_t, number, const char *, path))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, path, lab, rejected_path, LTTNG_UST_TP_ARGS(uint64_t, number, const char *, path))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(lab, path, lab, accepted_path, LTTNG_UST_TP_ARGS(uint64_t, number, const char *, path))

#endif

#include <lttng/tracepoint-event.h>
