/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A run of bytes to copy into a record. Twin of mechanisms/relay/src/write.rs.
 *
 * words * 8 bytes and then tail single bytes are copied, and the next run begins advance bytes on. So a run whose source
 * is padded by seven readable bytes may be copied by whole words: words = (len + 7) / 8, tail = 0, advance = len. Any
 * other is copied exactly: words = len / 8, tail = len % 8, advance = len.
 */
#ifndef DORMOUSE_ABI_SEGMENT_H
#define DORMOUSE_ABI_SEGMENT_H

#include <stddef.h>
#include <stdint.h>

struct dormouse_segment {
    const void *source;
    uint64_t words;
    uint32_t tail;
    uint32_t advance;
};

#ifdef __cplusplus
#define DORMOUSE_I_SEGMENT_ASSERT(condition) static_assert(condition, #condition)
#else
#define DORMOUSE_I_SEGMENT_ASSERT(condition) _Static_assert(condition, #condition)
#endif

DORMOUSE_I_SEGMENT_ASSERT(sizeof(struct dormouse_segment) == 24);
DORMOUSE_I_SEGMENT_ASSERT(offsetof(struct dormouse_segment, source) == 0);
DORMOUSE_I_SEGMENT_ASSERT(offsetof(struct dormouse_segment, words) == 8);
DORMOUSE_I_SEGMENT_ASSERT(offsetof(struct dormouse_segment, tail) == 16);
DORMOUSE_I_SEGMENT_ASSERT(offsetof(struct dormouse_segment, advance) == 20);

#undef DORMOUSE_I_SEGMENT_ASSERT

#endif
