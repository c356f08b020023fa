/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Patchable sites: the records of compiled gates and of reads of immediate values, which the patcher reads. Twin of
 * abi/src/site.rs.
 *
 *   branch   born          E9 dd dd dd dd                    jmp slow path, which reads the key
 *            between       A9 .. .. .. ..                    test eax, imm32, with any immediate
 *            falls through 0F 1F 44 00 00                    nop: the key is disabled (enabled if DORMOUSE_SITE_LIKELY)
 *            jumps         E9 tt tt tt tt                    jmp target: the key is enabled (disabled if ..._LIKELY)
 *            The target of a branch that reads its key is the slow path; that of a direct branch is the code behind it.
 *
 *   value    born          3E.. [REX] 8B|0F xx mm dd dd dd dd mov(zx, sx) r32, [variable]
 *            patched       3E REX C7 mm ii ii ii ii           mov r32, imm32
 *                          +- eight bytes, aligned to 8 -+    any number of 3E prefixes may precede it
 *
 *   gated    born          E9 dd dd dd dd  REX B8+r 0 (imm64) jmp slow path, which reads the variable
 *   value    patched       A9 dd dd dd dd  REX B8+r imm64     test eax, imm32; mov r64, imm64
 *                                                   + aligned to 8
 *
 *   call     born          E9 dd dd dd dd .. .. ..           jmp slow path, which jumps to the address in the variable
 *            patched       E9 ff ff ff ff .. .. ..           jmp function
 *                          +- eight bytes, aligned to 8 -+
 */
#ifndef DORMOUSE_ABI_SITE_H
#define DORMOUSE_ABI_SITE_H

#include <stddef.h>
#include <stdint.h>

/* Opcode of a gate that jumps (x86-64 `jmp rel32`). */
#define DORMOUSE_X86_JMP 0xE9
/*
 * Opcode of a gate that does not jump (x86-64 `test eax, imm32`): of a gated value while it is patched, or of a branch
 * between two states.
 */
#define DORMOUSE_X86_TEST 0xA9
/* Bytes of a branch that falls through (x86-64 `nop dword ptr [rax + rax + 0]`). */
#define DORMOUSE_X86_NOP { 0x0F, 0x1F, 0x44, 0x00, 0x00 }
/* Size of a branch, in bytes of code. */
#define DORMOUSE_X86_BRANCH_LEN 5

/* Sections that hold the records of one object. */
#define DORMOUSE_SITES_SECTION "dormouse_sites"
#define DORMOUSE_EVENTS_SECTION "dormouse_events"

/* dormouse_site_record.kind: the form, in the bits of the mask ... */
#define DORMOUSE_SITE_FORM_MASK 3
#define DORMOUSE_SITE_BRANCH 0        /* a branch to a slow path, which reads the key */
#define DORMOUSE_SITE_VALUE 1         /* a value of 1, 2 or 4 bytes */
#define DORMOUSE_SITE_GATED_VALUE 2   /* a value with a gate before it: of 8 bytes, or another object's */
#define DORMOUSE_SITE_DIRECT_BRANCH 3 /* a branch that reads no key once it is patched */
/* ... the binary logarithm of the value's width in bytes, in two bits from here; ... */
#define DORMOUSE_SITE_WIDTH_SHIFT 2
/* ... the value is sign-extended to the register; ... */
#define DORMOUSE_SITE_SIGNED 16
/* ... the key or variable belongs to another object, and is found through a word that the loader fills in; ... */
#define DORMOUSE_SITE_INDIRECT 32
/* ... a direct branch falls through while the key is enabled, and jumps while it is disabled. */
#define DORMOUSE_SITE_LIKELY 64
/* dormouse_site_record.kind of the entry of a static call, whose variable holds the address of a function. */
#define DORMOUSE_SITE_CALL 143

/* Size of the part of a value's instruction that is replaced at once, in bytes. */
#define DORMOUSE_X86_VALUE_LEN 8
/* Offset of a gated value's immediate from its gate, in bytes. */
#define DORMOUSE_X86_GATED_IMMEDIATE_OFFSET 7

/* One patchable site. Read-only, position-independent, 16 bytes. */
struct dormouse_site_record {
    int32_t site;   /* address of the site, or of a gated value's gate, minus the address of this field */
    uint32_t kind;  /* DORMOUSE_SITE_... */
    int32_t key;    /* address of the key or variable, or of the word that holds it, minus the address of this field */
    int32_t target; /* address to which a patched branch jumps, or of a call's slow path, minus this field's; zero for values */
};

/* Announces one event class of an object. 16 bytes. May be repeated; readers drop repetitions. */
struct dormouse_event_record {
    int64_t key;      /* address of the class's key minus the address of this field */
    int64_t describe; /* address of the description of the fields minus the address of this field */
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
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_site_record, target) == 12);
DORMOUSE_I_SITE_ASSERT(sizeof(struct dormouse_event_record) == 16);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_event_record, key) == 0);
DORMOUSE_I_SITE_ASSERT(offsetof(struct dormouse_event_record, describe) == 8);

#undef DORMOUSE_I_SITE_ASSERT

#endif
