// A program with tracepoints of LTTng-UST that have every kind of field.
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "lttng.h"
int main(){ int a[3]={1,2,3}; for(int i=0;i<20;i++){ lttng_ust_tracepoint(mine, ev, i, "he\"llo", a, 1.5*i); lttng_ust_tracepoint(mine, small, -i); lttng_ust_tracepoint(mine, a00, i); lttng_ust_tracepoint(mine, a39, i);} return 0;}
