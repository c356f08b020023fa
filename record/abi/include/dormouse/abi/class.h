/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Event classes: names, fields and their kinds, levels. Twin of abi/src/class.rs.
 */
#ifndef DORMOUSE_ABI_CLASS_H
#define DORMOUSE_ABI_CLASS_H

#include <stddef.h>
#include <stdint.h>

/* Kinds of fields. The type byte of a field is its kind, or its kind plus DORMOUSE_KIND_SEQUENCE. */
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
#define DORMOUSE_KIND_STR 13     /* bytes up to and including a terminating NUL */
#define DORMOUSE_KIND_BYTES 14   /* a uint32_t count, then as many bytes */

/* Added to a kind: a uint32_t count, then as many elements. Not allowed with STR and BYTES. */
#define DORMOUSE_KIND_SEQUENCE 0x80
/* Added to a kind of integers: an enumeration, whose labels the description contains. */
#define DORMOUSE_KIND_LABELLED 0x40

/* Levels of event classes, the most important first. The numbers are LTTng-UST's, and the first seven syslog's. */
#define DORMOUSE_LEVEL_EMERG 0
#define DORMOUSE_LEVEL_ALERT 1
#define DORMOUSE_LEVEL_CRIT 2
#define DORMOUSE_LEVEL_ERR 3
#define DORMOUSE_LEVEL_WARNING 4
#define DORMOUSE_LEVEL_NOTICE 5
#define DORMOUSE_LEVEL_INFO 6
#define DORMOUSE_LEVEL_DEBUG_SYSTEM 7
#define DORMOUSE_LEVEL_DEBUG_PROGRAM 8
#define DORMOUSE_LEVEL_DEBUG_PROCESS 9
#define DORMOUSE_LEVEL_DEBUG_MODULE 10
#define DORMOUSE_LEVEL_DEBUG_UNIT 11
#define DORMOUSE_LEVEL_DEBUG_FUNCTION 12
#define DORMOUSE_LEVEL_DEBUG_LINE 13
#define DORMOUSE_LEVEL_DEBUG 14

/* Maximum number of fields of an event class. */
#define DORMOUSE_FIELD_COUNT_MAX 32
/* Maximum number of labels of a field. */
#define DORMOUSE_LABEL_COUNT_MAX 1024
/* Maximum length of a provider, event or field name, and of a label, in bytes. */
#define DORMOUSE_NAME_LEN_MAX 255
/* Value of dormouse_class.id while the class is in no session. */
#define DORMOUSE_CLASS_ID_NONE UINT32_MAX

/*
 * An event class. It begins with the layout of a struct dormouse_static_key, so a class can be the key of a gate. Its
 * description follows it directly, in bytes without addresses:
 *
 *     field_count   type byte of each field   level     provider, NUL   name, NUL   name of each field, NUL
 *     1 byte        field_count bytes         1 byte    texts
 *
 *     labels of each field with DORMOUSE_KIND_LABELLED, NUL after each; NUL   NUL      values of all labels
 *     texts                                                                   1 byte   8 bytes each, not aligned
 *
 * The level is 0 if the class has none, otherwise its number plus 1.
 */
struct dormouse_class {
    int32_t enabled; /* number of users that have enabled the class; above zero means armed */
    uint32_t id;     /* the session's id with trigger bits, or DORMOUSE_CLASS_ID_NONE; used by the tracer */
};

/* Initial value of a class: not enabled, and in no session. */
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
