// Events of every kind of field that LTTng-UST has.
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER mine
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "./lttng.h"
#if !defined(_TP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define _TP_H
#include <lttng/tracepoint.h>
LTTNG_UST_TRACEPOINT_ENUM(mine, color, LTTNG_UST_TP_ENUM_VALUES(lttng_ust_field_enum_value("RED",0) lttng_ust_field_enum_value("BLUE",1) lttng_ust_field_enum_range("MANY",2,5)))
LTTNG_UST_TRACEPOINT_EVENT(mine, ev, LTTNG_UST_TP_ARGS(int, i, const char*, s, int*, a, double, d),
 LTTNG_UST_TP_FIELDS(
  lttng_ust_field_integer(int, i, i)
  lttng_ust_field_integer_hex(unsigned long, h, i*77)
  lttng_ust_field_integer_network_hex(unsigned int, net, 0x1234+i)
  lttng_ust_field_string(s, s)
  lttng_ust_field_array(int, arr, a, 3)
  lttng_ust_field_sequence(int, seq, a, unsigned int, i%4>3?3:i%4)
  lttng_ust_field_array_text(char, txt, s, 4)
  lttng_ust_field_sequence_text(char, stxt, s, unsigned int, 3)
  lttng_ust_field_float(double, d, d)
  lttng_ust_field_float(float, f, d)
  lttng_ust_field_enum(mine, color, int, col, i%8)
 ))
LTTNG_UST_TRACEPOINT_EVENT(mine, small, LTTNG_UST_TP_ARGS(int, i), LTTNG_UST_TP_FIELDS(lttng_ust_field_integer(short, i, i)))
#endif
#include <lttng/tracepoint-event.h>
