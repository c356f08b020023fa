/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Event classes: names, fields and their kinds. Twin of abi/src/class.rs.
 */
#ifndef DORMOUSE_ABI_CLASS_H
#define DORMOUSE_ABI_CLASS_H

#include <stddef.h>
#include <stdint.h>

/* What a field holds: its type byte. */
#define DORMOUSE_KIND_U8 1
#define DORMOUSE_KIND_U16 2
#define DORMOUSE_KIND_U32 3
#define DORMOUSE_KIND_U64 4
#define DORMOUSE_KIND_I8 5
#define DORMOUSE_KIND_I16 6
#define DORMOUSE_KIND_I32 7
#define DORMOUSE_KIND_I64 8
#define DORMOUSE_KIND_F32 9
#define DORMOUSE_KIND_F64 10
#define DORMOUSE_KIND_BOOL 11    /* one byte, 0 or 1 */
#define DORMOUSE_KIND_POINTER 12 /* an address: 8 bytes */
#define DORMOUSE_KIND_STR 13     /* bytes up to and with a terminating NUL */
#define DORMOUSE_KIND_BYTES 14   /* a uint32_t count, then that many bytes */

/* Added to a kind: a uint32_t count, then that many elements. Not of STR and BYTES. */
#define DORMOUSE_KIND_SEQUENCE 0x80

/* Most fields an event class may have. */
#define DORMOUSE_FIELD_COUNT_MAX 32
/* Longest provider, event or field name in bytes. */
#define DORMOUSE_NAME_LEN_MAX 255
/* dormouse_class.id while the class is in no session. */
#define DORMOUSE_CLASS_ID_NONE UINT32_MAX

/*
 * An event class. Begins as a struct dormouse_static_key does, so a class can be the key of a gate. What it describes
 * follows it at once, in bytes without an address in them:
 *
 *     field_count   type byte of each field, and 0   provider, NUL   name, NUL   name of each field, NUL
 *     1 byte        field_count + 1 bytes            texts
 */
struct dormouse_class {
    int32_t enabled; /* how many have enabled the class; above zero means armed */
    uint32_t id;     /* the tracer's: the id that the session has given and whether triggers wait for it, or DORMOUSE_CLASS_ID_NONE */
};

/* A class that nobody has enabled. */
#define DORMOUSE_CLASS_INIT { 0, DORMOUSE_CLASS_ID_NONE }

#ifdef __cplusplus
#define DORMOUSE_I_CLASS_ASSERT(condition) static_assert(condition, #condition)
#else
#define DORMOUSE_I_CLASS_ASSERT(condition) _Static_assert(condition, #condition)
#endif

DORMOUSE_I_CLASS_ASSERT(sizeof(struct dormouse_class) == 8);
DORMOUSE_I_CLASS_ASSERT(offsetof(struct dormouse_class, enabled) == 0);
DORMOUSE_I_CLASS_ASSERT(offsetof(struct dormouse_class, id) == 4);

#undef DORMOUSE_I_CLASS_ASSERT

#endif
