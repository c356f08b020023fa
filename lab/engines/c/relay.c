/*
 * Records of C programs, written to a channel, for the experiment `relay-write`; `relay_c.rs` is the program.
 *
 *   empty_N_aligned_channel        the loop alone
 *   c-inlined_N_aligned_channel    dormouse_relay_channel_reserve(), N bytes, dormouse_relay_channel_commit(), inline
 *   c-called_N_aligned_channel     dormouse_relay_channel_write() in a function, for a length that it does not know
 *
 * The channel overwrites, and is like the one of `src/relay/channel.rs`: eight pages of 64 KiB for each CPU.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <dormouse/relay.h>

#include "loops.h"

static struct dormouse_relay_channel *channel;
static uint64_t refused;

/* The bytes of long records: eight texts of 64 bytes, which a number chooses. */
static unsigned char texts[8][64];

/* Returns the bytes of a record: a number of up to 8 bytes, or a text. */
#define BYTES(len) ((len) > 8 ? (const void *)texts[number & 7] : (const void *)&number)

#define INLINED(len)                                                                                                   \
    void *record = dormouse_relay_channel_reserve(channel, len);                                                       \
    if (record) {                                                                                                      \
        memcpy(record, BYTES(len), len);                                                                               \
        dormouse_relay_channel_commit(record);                                                                         \
    } else {                                                                                                           \
        refused++;                                                                                                     \
    }

static __attribute__((noinline)) int write_record(const void *bytes, size_t len)
{
    return dormouse_relay_channel_write(channel, NULL, 0, bytes, len);
}

#define CALLED(length)                                                                                                 \
    size_t len = length;                                                                                               \
    LAB_OPAQUE(len);                                                                                                   \
    refused += write_record(BYTES(length), len) != 0

#define NOTHING (void)0
#define EMPTY(len)                                                                                                     \
    const void *bytes = BYTES(len);                                                                                    \
    LAB_OPAQUE(bytes)

#define LOOPS(len)                                                                                                     \
    LAB_LOOP(empty_##len, NOTHING, EMPTY(len))                                                                         \
    LAB_LOOP(inlined_##len, NOTHING, INLINED(len))                                                                     \
    LAB_LOOP(called_##len, NOTHING, CALLED(len))

LOOPS(8)
LOOPS(16)
LOOPS(64)

#define CASES(len)                                                                                                     \
    { "empty_" #len "_aligned_channel", empty_##len, 0 },                                                              \
    { "c-inlined_" #len "_aligned_channel", inlined_##len, 1 },                                                        \
    { "c-called_" #len "_aligned_channel", called_##len, 1 }

static const struct dormouse_lab_case cases[] = { CASES(8), CASES(16), CASES(64) };

/* Returns the cases; NULL if there is no memory. */
const struct dormouse_lab_case *dormouse_lab_c_cases(size_t *count)
{
    struct dormouse_relay_channel_options options;
    dormouse_relay_channel_options_init(&options, DORMOUSE_RELAY_OVERWRITE);
    channel = dormouse_relay_channel_create(-1, &options);
    if (!channel)
        return NULL;
    for (size_t index = 0; index < sizeof texts; index++)
        texts[index / 64][index % 64] = (unsigned char)(index * 167 + 1);
    *count = LAB_COUNT(cases);
    return cases;
}

/* Whether a record is one that a case writes. */
static bool is_right(const unsigned char *record, size_t len)
{
    if (len == 8)
        return true;
    for (int text = 0; text < 8; text++) {
        if ((len == 16 || len == 64) && memcmp(record, texts[text], len) == 0)
            return true;
    }
    return false;
}

/* Returns how many records are in the channel or were overwritten; 0 if one of them is not what was written. */
uint64_t dormouse_lab_c_arrived(void)
{
    uint64_t sum = 0;
    for (uint32_t buffer = 0; buffer < dormouse_relay_channel_buffer_count(channel); buffer++) {
        struct dormouse_relay_counts counts;
        struct dormouse_relay_page page;
        dormouse_relay_channel_flush(channel, buffer);
        while (dormouse_relay_channel_take(channel, buffer, &page, 0) == 0) {
            size_t len;
            const unsigned char *record;
            while ((record = (const unsigned char *)dormouse_relay_channel_next(channel, &page, &len)) != NULL) {
                if (!is_right(record, len))
                    return 0;
                sum++;
            }
            dormouse_relay_channel_give_back(channel, &page);
        }
        if (dormouse_relay_channel_counts(channel, buffer, &counts) != 0)
            return 0;
        sum += counts.overwritten;
    }
    return refused == 0 ? sum : 0;
}
