// Events with every kind of field that LTTng-UST has.
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
#define A(n) LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(mine, small, mine, n, LTTNG_UST_TP_ARGS(int, i))
A(a00) A(a01) A(a02) A(a03) A(a04) A(a05) A(a06) A(a07) A(a08) A(a09) A(a10) A(a11) A(a12) A(a13) A(a14) A(a15) A(a16) A(a17) A(a18) A(a19)
A(a20) A(a21) A(a22) A(a23) A(a24) A(a25) A(a26) A(a27) A(a28) A(a29) A(a30) A(a31) A(a32) A(a33) A(a34) A(a35) A(a36) A(a37) A(a38) A(a39)
#endif
#include <lttng/tracepoint-event.h>
