/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Patchable sites: what a compiled gate leaves behind for the patcher. Twin of abi/src/site.rs.
 *
 *   born, armed   E9 dd dd dd dd   jmp  slow path (which reads the key)
 *   dormant       A9 dd dd dd dd   test eax, imm32 (clobbers flags, touches no memory)
 */
#ifndef DORMOUSE_ABI_SITE_H
#define DORMOUSE_ABI_SITE_H

#include <stddef.h>
#include <stdint.h>

/* First byte of a site that jumps to its slow path (x86-64 `jmp rel32`). */
#define DORMOUSE_X86_JMP 0xE9
/* First byte of a dormant site (x86-64 `test eax, imm32`). */
#define DORMOUSE_X86_TEST 0xA9
/* Bytes of code in one site. */
#define DORMOUSE_X86_SITE_LEN 5

/* Sections that hold the records of one object. */
#define DORMOUSE_SITES_SECTION "dormouse_sites"
#define DORMOUSE_EVENTS_SECTION "dormouse_events"

/* dormouse_site_record.kind of a static branch. Other kinds are reserved. */
#define DORMOUSE_SITE_BRANCH 0

/* One patchable site. Read-only, position-independent, 16 bytes. */
struct dormouse_site_record {
    int32_t site;  /* address of the site minus the address of this field */
    uint32_t kind; /* DORMOUSE_SITE_BRANCH */
    int64_t key;   /* address of the key minus the address of this field */
};

/* Announces one event class of an object. 16 bytes. May be repeated; readers drop repetitions. */
struct dormouse_event_record {
    int64_t key;      /* address of the class's key minus the address of this field */
    int64_t describe; /* address of what describes the fields minus the address of this field */
};

#ifdef __cplusplus
#define DORMOUSE_I_SITE_ASSERT(condition) static_assert(condition, #condition)
#else
#define DORMOUSE_I_SITE_ASSERT(condition) _Static_assert(condition, #condition)
#endif

DORMOUSE_I_SITE_ASSERT(sizeof(struct dormouse_site_record) == 16);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_site_record, site) == 0);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_site_record, kind) == 4);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_site_record, key) == 8);
DORMOUSE_I_SITE_ASSERT(sizeof(struct dormouse_event_record) == 16);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_event_record, key) == 0);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_event_record, describe) == 8);

#undef DORMOUSE_I_SITE_ASSERT

#endif
