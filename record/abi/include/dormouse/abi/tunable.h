/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tunables: the records of exported variables, for programs that list and set them. Twin of TunableRecord in abi/src/site.rs.
 */
#ifndef DORMOUSE_ABI_TUNABLE_H
#define DORMOUSE_ABI_TUNABLE_H

#include <stdint.h>

/* Section that holds the records of one object. */
#define DORMOUSE_TUNABLES_SECTION "dormouse_tunables"

/* dormouse_tunable_record.value_type */
#define DORMOUSE_TUNABLE_TYPE_KEY 0
#define DORMOUSE_TUNABLE_TYPE_BOOL 1
#define DORMOUSE_TUNABLE_TYPE_U8 2
#define DORMOUSE_TUNABLE_TYPE_U16 3
#define DORMOUSE_TUNABLE_TYPE_U32 4
#define DORMOUSE_TUNABLE_TYPE_U64 5
#define DORMOUSE_TUNABLE_TYPE_I8 6
#define DORMOUSE_TUNABLE_TYPE_I16 7
#define DORMOUSE_TUNABLE_TYPE_I32 8
#define DORMOUSE_TUNABLE_TYPE_I64 9
#define DORMOUSE_TUNABLE_TYPE_F32 10
#define DORMOUSE_TUNABLE_TYPE_F64 11

/* A variable that a program lets its operators see and set. Absolute addresses. May be repeated; readers drop repetitions. */
struct dormouse_tunable_record {
    const char *name;        /* 1 to 255 visible ASCII characters without blanks */
    const char *description; /* one line of UTF-8 */
    void *variable;          /* the variable or the static key */
    uint32_t value_type;     /* DORMOUSE_TUNABLE_TYPE_... */
    uint32_t reserved;       /* zero */
    uint64_t min;            /* minimum, as the bits of a uint64_t, int64_t or double, by the type */
    uint64_t max;            /* maximum, in the same form */
};

#endif
