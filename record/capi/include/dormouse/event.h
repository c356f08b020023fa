/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Events for C11 and C++17 (gcc and clang).
 *
 *     #include <dormouse/event.h>
 *
 *     DORMOUSE_EVENT(db, query, (rows, n), (sql, text), (times, DORMOUSE_ARRAY(p, count)));
 *     DORMOUSE_EVENT(app, tick);
 *
 * The arguments are provider, event, then up to 32 fields, each a name and a value whose type is inferred. The macro is
 * a statement, allowed anywhere in a function: in several translation units, static inline functions, C++ inline
 * functions, templates, lambdas, constructors, shared libraries and plugins. Link with -ldormouse.
 *
 *     value                                              recorded as
 *     integers up to 64 bits, char, bool, enums          the value
 *     float, double                                      the value
 *     char *                                             text up to the NUL; NULL is empty text
 *     other pointers to objects                          the address
 *     DORMOUSE_BYTES(pointer, size_t)                    bytes
 *     DORMOUSE_ARRAY(pointer, size_t)                    a sequence of integers, floats, bools or void pointers
 *     C++: std::string, std::string_view                 text up to the first NUL
 *     C++: std::array, std::vector, other types with data() and size()        a sequence
 *
 * A field whose name is DORMOUSE_ENUM(name, enumerator…) is shown by the names of its values. Up to 256 enumerators are
 * listed; for a constant that is a macro, or to give another name, ("NAME", constant) stands for the enumerator. In
 * C++, an enumerator is shown without its scope. A macro can hold the list:
 *
 *     enum state { READY, RUNNING, DONE };
 *     #define STATE(name) DORMOUSE_ENUM(name, READY, RUNNING, ("FINISHED", DONE))
 *     DORMOUSE_EVENT(job, moved, (id, job->id), (STATE(from), job->state), (STATE(to), state));
 *
 * An event can have a level (EMERG to DEBUG, listed in dormouse/abi/class.h), by which rules and tools select:
 *
 *     DORMOUSE_EVENT_LEVEL(WARNING, db, slow, (sql, text));
 *
 * If the event is armed, values are evaluated once, in order; otherwise they are not evaluated. Pointed-to data must
 * live until the statement ends, which temporaries do, and text must not be changed by another thread meanwhile. The
 * macro never blocks, allocates or fails, and is async-signal-safe if the values are.
 *
 * A dormant event is one instruction: five bytes on x86-64, four on AArch64. With DORMOUSE_DISABLE defined before this header is included, it
 * generates no code: the values are compiled but never evaluated, and the library is not needed.
 *
 * Names are C identifiers of ASCII letters, digits and _, of at most 255 bytes. A name that is also a macro (errno,
 * stdin) cannot be used. Other names do not compile, except that clang accepts a name with $ in C; the session then
 * reports its class as refused, as it does for such a label, or two equal labels. Cast bit-fields in C. A C inline function must be static (C11 6.7.4p3).
 */
#ifndef DORMOUSE_EVENT_H
#define DORMOUSE_EVENT_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include <dormouse/abi/class.h>

#ifndef DORMOUSE_DISABLE
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "events in C and C++ are recorded on little-endian machines only; define DORMOUSE_DISABLE to leave them out"
#endif
#if UINTPTR_MAX <= 0xffffffffu
#error "events are recorded on machines with 64-bit addresses only; define DORMOUSE_DISABLE to leave them out"
#endif
#include <dormouse/dormouse.h>
#include <dormouse/static_key.h>
#endif

#ifdef __cplusplus
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility> /* std::declval */
#endif

#define DORMOUSE_I_ALWAYS_INLINE __attribute__((always_inline, unused)) static inline

#define DORMOUSE_I_CAT(a, b) DORMOUSE_I_CAT_EXPANDED(a, b)
#define DORMOUSE_I_CAT_EXPANDED(a, b) a##b
#define DORMOUSE_I_STRING(text) DORMOUSE_I_STRING_EXPANDED(text)
#define DORMOUSE_I_STRING_EXPANDED(text) #text

/* Number of fields of an event: arguments less provider and name. */
#define DORMOUSE_I_FIELD_COUNT(...)                                                                                    \
    DORMOUSE_I_FIELD_COUNT_OF(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, \
                              13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, none, 0)
#define DORMOUSE_I_FIELD_COUNT_OF(a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,     \
                                  a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31, a32, a33, a34,      \
                                  count, ...)                                                                          \
    count

/* Expands to map(name, value) for each field. The argument after the last field is left out. */
#define DORMOUSE_I_MAP_0(map, end)
#define DORMOUSE_I_MAP_1(map, field, ...) map field DORMOUSE_I_MAP_0(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_2(map, field, ...) map field DORMOUSE_I_MAP_1(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_3(map, field, ...) map field DORMOUSE_I_MAP_2(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_4(map, field, ...) map field DORMOUSE_I_MAP_3(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_5(map, field, ...) map field DORMOUSE_I_MAP_4(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_6(map, field, ...) map field DORMOUSE_I_MAP_5(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_7(map, field, ...) map field DORMOUSE_I_MAP_6(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_8(map, field, ...) map field DORMOUSE_I_MAP_7(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_9(map, field, ...) map field DORMOUSE_I_MAP_8(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_10(map, field, ...) map field DORMOUSE_I_MAP_9(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_11(map, field, ...) map field DORMOUSE_I_MAP_10(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_12(map, field, ...) map field DORMOUSE_I_MAP_11(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_13(map, field, ...) map field DORMOUSE_I_MAP_12(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_14(map, field, ...) map field DORMOUSE_I_MAP_13(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_15(map, field, ...) map field DORMOUSE_I_MAP_14(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_16(map, field, ...) map field DORMOUSE_I_MAP_15(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_17(map, field, ...) map field DORMOUSE_I_MAP_16(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_18(map, field, ...) map field DORMOUSE_I_MAP_17(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_19(map, field, ...) map field DORMOUSE_I_MAP_18(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_20(map, field, ...) map field DORMOUSE_I_MAP_19(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_21(map, field, ...) map field DORMOUSE_I_MAP_20(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_22(map, field, ...) map field DORMOUSE_I_MAP_21(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_23(map, field, ...) map field DORMOUSE_I_MAP_22(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_24(map, field, ...) map field DORMOUSE_I_MAP_23(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_25(map, field, ...) map field DORMOUSE_I_MAP_24(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_26(map, field, ...) map field DORMOUSE_I_MAP_25(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_27(map, field, ...) map field DORMOUSE_I_MAP_26(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_28(map, field, ...) map field DORMOUSE_I_MAP_27(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_29(map, field, ...) map field DORMOUSE_I_MAP_28(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_30(map, field, ...) map field DORMOUSE_I_MAP_29(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_31(map, field, ...) map field DORMOUSE_I_MAP_30(map, __VA_ARGS__)
#define DORMOUSE_I_MAP_32(map, field, ...) map field DORMOUSE_I_MAP_31(map, __VA_ARGS__)

/*
 * Fields as the macros below take them: (name, number of labels, labels, their values, value). A name that is in
 * parentheses is a DORMOUSE_ENUM.
 */
#define DORMOUSE_I_WHOLE(name, ...)                                                                                    \
    , DORMOUSE_I_PASTE(DORMOUSE_I_WHOLE_, DORMOUSE_I_IS_IN_PARENTHESES(name))(name, __VA_ARGS__)
#define DORMOUSE_I_WHOLE_0(name, ...) (name, 0, , (), __VA_ARGS__)
#define DORMOUSE_I_WHOLE_1(name, ...) DORMOUSE_I_WHOLE_LABELLED(DORMOUSE_I_OPEN name, __VA_ARGS__)
#define DORMOUSE_I_WHOLE_LABELLED(...) (__VA_ARGS__)

#define DORMOUSE_I_PASTE(a, b) DORMOUSE_I_PASTE_EXPANDED(a, b)
#define DORMOUSE_I_PASTE_EXPANDED(a, b) a##b
#define DORMOUSE_I_OPEN(...) __VA_ARGS__
#define DORMOUSE_I_IS_IN_PARENTHESES(what) DORMOUSE_I_SECOND(DORMOUSE_I_IN_PARENTHESES what, 0, )
#define DORMOUSE_I_IN_PARENTHESES(...) , 1
#define DORMOUSE_I_SECOND(...) DORMOUSE_I_SECOND_OF(__VA_ARGS__)
#define DORMOUSE_I_SECOND_OF(first, second, ...) second

/* Expands to (name, number of labels, labels with NUL and an empty text, values in parentheses). */
#define DORMOUSE_ENUM(name, ...)                                                                                       \
    (name, (0 DORMOUSE_I_EACH(DORMOUSE_I_LABEL_COUNT, __VA_ARGS__)),                                                   \
     DORMOUSE_I_EACH(DORMOUSE_I_LABEL_TEXT, __VA_ARGS__) "\0", (DORMOUSE_I_EACH(DORMOUSE_I_LABEL_VALUE, __VA_ARGS__)))
#define DORMOUSE_I_LABEL_COUNT(label) +1
#define DORMOUSE_I_LABEL_TEXT(label)                                                                                   \
    DORMOUSE_I_PASTE(DORMOUSE_I_LABEL_TEXT_, DORMOUSE_I_IS_IN_PARENTHESES(label))(label) "\0"
#define DORMOUSE_I_LABEL_TEXT_0(enumerator) #enumerator
#define DORMOUSE_I_LABEL_TEXT_1(pair) DORMOUSE_I_LABEL_TEXT_OF pair
#define DORMOUSE_I_LABEL_TEXT_OF(text, value) text
#define DORMOUSE_I_LABEL_VALUE(label)                                                                                  \
    DORMOUSE_I_PASTE(DORMOUSE_I_LABEL_VALUE_, DORMOUSE_I_IS_IN_PARENTHESES(label))(label)
#define DORMOUSE_I_LABEL_VALUE_0(enumerator) {DORMOUSE_I_LABEL_BITS(enumerator)},
#define DORMOUSE_I_LABEL_VALUE_1(pair) DORMOUSE_I_LABEL_VALUE_OF pair
#define DORMOUSE_I_LABEL_VALUE_OF(text, value) {DORMOUSE_I_LABEL_BITS(value)},

/*
 * Expands to each(label) for up to 256 labels. The macros of a list do not call themselves, which the preprocessor does
 * not expand, but leave a name that the next of the nested expansions turns into a call. The end of the list turns it
 * into nothing.
 */
#define DORMOUSE_I_EACH(each, ...) DORMOUSE_I_EXPAND(DORMOUSE_I_EACH_A(each, __VA_ARGS__, ()()(), ()()(), ()()(), 0))
#define DORMOUSE_I_EACH_A(each, label, next, ...)                                                                      \
    each(label) DORMOUSE_I_NEXT(next, DORMOUSE_I_EACH_B)(each, next, __VA_ARGS__)
#define DORMOUSE_I_EACH_B(each, label, next, ...)                                                                      \
    each(label) DORMOUSE_I_NEXT(next, DORMOUSE_I_EACH_A)(each, next, __VA_ARGS__)
#define DORMOUSE_I_NEXT(next, call) DORMOUSE_I_NEXT_OF(DORMOUSE_I_AT_END next, call)
#define DORMOUSE_I_NEXT_OF(at_end, call) DORMOUSE_I_NEXT_CALL(at_end, call, 0)
#define DORMOUSE_I_NEXT_CALL(at_end, call, ...) call DORMOUSE_I_NOTHING
#define DORMOUSE_I_NOTHING
#define DORMOUSE_I_AT_END(...) DORMOUSE_I_AT_END_1
#define DORMOUSE_I_AT_END_1(...) DORMOUSE_I_AT_END_2
#define DORMOUSE_I_AT_END_2() 0, DORMOUSE_I_NO_CALL
#define DORMOUSE_I_NO_CALL(...)
#define DORMOUSE_I_EXPAND(...) DORMOUSE_I_EXPAND_4(DORMOUSE_I_EXPAND_4(DORMOUSE_I_EXPAND_4(__VA_ARGS__)))
#define DORMOUSE_I_EXPAND_4(...) DORMOUSE_I_EXPAND_3(DORMOUSE_I_EXPAND_3(DORMOUSE_I_EXPAND_3(__VA_ARGS__)))
#define DORMOUSE_I_EXPAND_3(...) DORMOUSE_I_EXPAND_2(DORMOUSE_I_EXPAND_2(DORMOUSE_I_EXPAND_2(__VA_ARGS__)))
#define DORMOUSE_I_EXPAND_2(...) DORMOUSE_I_EXPAND_1(DORMOUSE_I_EXPAND_1(DORMOUSE_I_EXPAND_1(__VA_ARGS__)))
#define DORMOUSE_I_EXPAND_1(...) DORMOUSE_I_EXPAND_0(DORMOUSE_I_EXPAND_0(DORMOUSE_I_EXPAND_0(__VA_ARGS__)))
#define DORMOUSE_I_EXPAND_0(...) __VA_ARGS__

#ifdef __cplusplus
#define DORMOUSE_I_LABEL_BITS(value) static_cast< ::std::int64_t>(value)
#else
#define DORMOUSE_I_LABEL_BITS(value) ((int64_t)(value))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Bits of a label's value, which have no gap before them. */
struct __attribute__((packed)) dormouse_i_label_bits {
    int64_t bits;
};

/* Bytes to record, the result of DORMOUSE_BYTES. */
struct dormouse_i_bytes {
    const void *data;
    size_t size_bytes;
};

DORMOUSE_I_ALWAYS_INLINE struct dormouse_i_bytes dormouse_i_bytes_of(const void *data, size_t size_bytes)
{
    struct dormouse_i_bytes bytes;
    bytes.data = data;
    bytes.size_bytes = size_bytes;
    return bytes;
}

#define DORMOUSE_BYTES(pointer, size_bytes) (dormouse_i_bytes_of((pointer), (size_bytes)))

#ifndef DORMOUSE_DISABLE

/* Runs before the constructors of C++ objects, and after their destructors, because these may trace. */
DORMOUSE_I_RECORDS(events, "aR", dormouse_event_record, constructor(101), destructor(101), dormouse_register_events,
                   dormouse_unregister_events)

/*   section dormouse_events += { class - ., 0 }   in the COMDAT group of the enclosing function   */
#define DORMOUSE_I_ANNOUNCEMENT                                                                                        \
    ".pushsection dormouse_events,\"aR?\",%%progbits\n\t"                                                             \
    ".balign 8\n\t"                                                                                                    \
    ".8byte " DORMOUSE_I_SYMBOL(dormouse_i_key) " - .\n\t"                                                             \
    ".8byte 0\n\t"                                                                                                     \
    ".popsection\n\t"

/*
 *   gate(class) ── dormant ──▶ next statement
 *     └─ armed ──▶ record                             the key is acquired before the values are evaluated
 */
#define DORMOUSE_I_WHEN_ARMED(event_class, ...)                                                                        \
    DORMOUSE_I_GATE(event_class, DORMOUSE_I_ANNOUNCEMENT, dormouse_i_armed);                                           \
    if (0) {                                                                                                           \
    dormouse_i_armed:                                                                                                  \
        __asm__ volatile("" : : : "memory");                                                                           \
        __VA_ARGS__                                                                                                    \
    }

#endif /* DORMOUSE_DISABLE */

#ifdef __cplusplus
} /* extern "C" */
#endif

#ifdef __cplusplus
#define DORMOUSE_I_ASSERT static_assert
#else
#define DORMOUSE_I_ASSERT _Static_assert
#endif

#define DORMOUSE_I_UNKNOWN_TYPE                                                                                        \
    "a value of this type cannot be a field of an event: cast integers of more than 64 bits and bit-fields, and write "  \
    "DORMOUSE_ARRAY(pointer, count) for an array"

/* In C, clang does not accept a function call as a constant. */
#if defined(__clang__) && !defined(__cplusplus)
#define DORMOUSE_I_HAS_DOLLAR(text) 0
#else
#define DORMOUSE_I_HAS_DOLLAR(text) (__builtin_strchr(text, '$') != NULL)
#endif

/* Checks that text has as many code points as bytes, so that it is ASCII. __extension__ because a pedantic C compiler
 * does not accept a function call as a constant either. */
#define DORMOUSE_I_CHECK_TEXT(text)                                                                                    \
    __extension__ DORMOUSE_I_ASSERT(                                                                                   \
        sizeof(text) <= DORMOUSE_NAME_LEN_MAX + 1 && sizeof(U"" text) == 4 * sizeof(text) &&                           \
            !DORMOUSE_I_HAS_DOLLAR(text),                                                                              \
        "a trace cannot hold the name " text ": write ASCII letters, digits and _, at most 255 bytes");

#define DORMOUSE_I_NO_LABELS "only an integer or an enumeration can have labels"

/* Provider, event, fields and all labels, each terminated by NUL, as one literal. */
#define DORMOUSE_I_NAME(name, ...) #name "\0"
#define DORMOUSE_I_LABEL_TEXTS(name, label_count, labels, ...) labels
#define DORMOUSE_I_NAMES(count, provider, name, ...)                                                                   \
    DORMOUSE_I_STRING(provider) "\0" DORMOUSE_I_STRING(name) "\0"                                                    \
    DORMOUSE_I_CAT(DORMOUSE_I_MAP_, count)(DORMOUSE_I_NAME, __VA_ARGS__)                                               \
    DORMOUSE_I_CAT(DORMOUSE_I_MAP_, count)(DORMOUSE_I_LABEL_TEXTS, __VA_ARGS__)

/* Number of labels of all fields, and their values. */
#define DORMOUSE_I_ADD_LABELS(name, label_count, ...) +label_count
#define DORMOUSE_I_LABEL_COUNTS(count, ...)                                                                            \
    (0 DORMOUSE_I_CAT(DORMOUSE_I_MAP_, count)(DORMOUSE_I_ADD_LABELS, __VA_ARGS__))
#define DORMOUSE_I_OPEN_VALUES(name, label_count, labels, label_values, ...) DORMOUSE_I_OPEN label_values

/* Checks at compile time that names are identifiers that a trace can hold, and that the fields' names differ. */
#define DORMOUSE_I_CHECK_NAME(name, ...) , name##_dormouse_i_field
#define DORMOUSE_I_CHECK_NAME_TEXT(name, ...) DORMOUSE_I_CHECK_TEXT(#name)
#define DORMOUSE_I_CHECK_NAMES(count, provider, name, ...)                                                             \
    DORMOUSE_I_CHECK_TEXT(DORMOUSE_I_STRING(provider))                                                                 \
    DORMOUSE_I_CHECK_TEXT(DORMOUSE_I_STRING(name))                                                                     \
    DORMOUSE_I_CAT(DORMOUSE_I_MAP_, count)(DORMOUSE_I_CHECK_NAME_TEXT, __VA_ARGS__)                                    \
    enum {                                                                                                             \
        DORMOUSE_I_CAT(provider, _dormouse_i_provider),                                                                \
        DORMOUSE_I_CAT(name, _dormouse_i_event)                                                                        \
        DORMOUSE_I_CAT(DORMOUSE_I_MAP_, count)(DORMOUSE_I_CHECK_NAME, __VA_ARGS__)                                     \
    }

/* clang-format off */
#ifndef __cplusplus

#if CHAR_MIN < 0
#define DORMOUSE_I_KIND_CHAR DORMOUSE_KIND_I8
#else
#define DORMOUSE_I_KIND_CHAR DORMOUSE_KIND_U8
#endif

#if LONG_MAX == INT64_MAX
#define DORMOUSE_I_KIND_LONG DORMOUSE_KIND_I64
#define DORMOUSE_I_KIND_ULONG DORMOUSE_KIND_U64
#else
#define DORMOUSE_I_KIND_LONG DORMOUSE_KIND_I32
#define DORMOUSE_I_KIND_ULONG DORMOUSE_KIND_U32
#endif

/* Expands to each(C type, suffix, kind) for the types whose values are recorded unchanged. */
#define DORMOUSE_I_SCALARS(each)                                                                                       \
    each(_Bool, bool, DORMOUSE_KIND_BOOL)                                                                              \
    each(char, char, DORMOUSE_I_KIND_CHAR)                                                                             \
    each(signed char, schar, DORMOUSE_KIND_I8)                                                                         \
    each(unsigned char, uchar, DORMOUSE_KIND_U8)                                                                       \
    each(short, short, DORMOUSE_KIND_I16)                                                                              \
    each(unsigned short, ushort, DORMOUSE_KIND_U16)                                                                    \
    each(int, int, DORMOUSE_KIND_I32)                                                                                  \
    each(unsigned int, uint, DORMOUSE_KIND_U32)                                                                        \
    each(long, long, DORMOUSE_I_KIND_LONG)                                                                             \
    each(unsigned long, ulong, DORMOUSE_I_KIND_ULONG)                                                                  \
    each(long long, llong, DORMOUSE_KIND_I64)                                                                          \
    each(unsigned long long, ullong, DORMOUSE_KIND_U64)                                                                \
    each(float, float, DORMOUSE_KIND_F32)                                                                              \
    each(double, double, DORMOUSE_KIND_F64)

#define DORMOUSE_I_SEQUENCE_TYPE(type, suffix, kind)                                                                   \
    struct dormouse_i_array_##suffix {                                                                                 \
        const void *data;                                                                                              \
        size_t count;                                                                                                  \
    };                                                                                                                 \
    DORMOUSE_I_ALWAYS_INLINE struct dormouse_i_array_##suffix dormouse_i_array_##suffix(const void *data, size_t count)\
    {                                                                                                                  \
        struct dormouse_i_array_##suffix array = {data, count};                                                        \
        return array;                                                                                                  \
    }

DORMOUSE_I_SCALARS(DORMOUSE_I_SEQUENCE_TYPE)
DORMOUSE_I_SEQUENCE_TYPE(void *, pointer, DORMOUSE_KIND_POINTER)
#undef DORMOUSE_I_SEQUENCE_TYPE

#define DORMOUSE_I_ARRAY_CASE(type, suffix, kind) type: dormouse_i_array_##suffix,
#define DORMOUSE_ARRAY(pointer, count)                                                                                 \
    (_Generic(*(pointer),                                                                                              \
        DORMOUSE_I_SCALARS(DORMOUSE_I_ARRAY_CASE)                                                                      \
        const void *: dormouse_i_array_pointer,                                                                        \
        void *: dormouse_i_array_pointer)((pointer), (count)))

/*
 * Properties of a field's type: the size of `kind` is its type byte, and `value` is what is kept until the record is
 * written: the value itself, the address of text, or the structure of bytes and arrays.
 */
#define DORMOUSE_I_FIELD_TYPES(type, suffix, kind_)                                                                    \
    extern struct dormouse_i_field_##suffix {                                                                          \
        char kind[kind_];                                                                                              \
        type value;                                                                                                    \
    } dormouse_i_field_##suffix;                                                                                       \
    extern struct dormouse_i_field_array_##suffix {                                                                    \
        char kind[(kind_) | DORMOUSE_KIND_SEQUENCE];                                                                   \
        struct dormouse_i_array_##suffix value;                                                                        \
    } dormouse_i_field_array_##suffix;

DORMOUSE_I_SCALARS(DORMOUSE_I_FIELD_TYPES)
DORMOUSE_I_FIELD_TYPES(const volatile void *, pointer, DORMOUSE_KIND_POINTER)
#undef DORMOUSE_I_FIELD_TYPES

extern struct dormouse_i_field_bytes {
    char kind[DORMOUSE_KIND_BYTES];
    struct dormouse_i_bytes value;
} dormouse_i_field_bytes;

extern struct dormouse_i_field_text {
    char kind[DORMOUSE_KIND_STR];
    const char *value;
} dormouse_i_field_text;

#define DORMOUSE_I_FIELD_CASE(type, suffix, kind)                                                                      \
    type: dormouse_i_field_##suffix, struct dormouse_i_array_##suffix: dormouse_i_field_array_##suffix,
#define DORMOUSE_I_FIELD_OF(...)                                                                                       \
    _Generic((__VA_ARGS__),                                                                                            \
        DORMOUSE_I_SCALARS(DORMOUSE_I_FIELD_CASE)                                                                      \
        struct dormouse_i_array_pointer: dormouse_i_field_array_pointer,                                               \
        struct dormouse_i_bytes: dormouse_i_field_bytes,                                                               \
        const char *: dormouse_i_field_text,                                                                           \
        char *: dormouse_i_field_text,                                                                                 \
        default: dormouse_i_field_pointer)

/* Types that are not named above are recorded as pointers, if they are: neither wider integers nor arrays, whose address
 * would be recorded. An array of characters is text. The comma turns an array or a function into a pointer, and a function
 * is what it points to. */
#define DORMOUSE_I_POINTER_CLASS 5
#define DORMOUSE_I_POINTER(...)                                                                                        \
    __builtin_choose_expr(__builtin_classify_type(__VA_ARGS__) == DORMOUSE_I_POINTER_CLASS, (__VA_ARGS__), (char *)0)
#define DORMOUSE_I_KNOWN_CASE(type, suffix, kind) type: 1, struct dormouse_i_array_##suffix: 1,
#define DORMOUSE_I_TYPE_IS_KNOWN(...)                                                                                  \
    (_Generic((__VA_ARGS__),                                                                                           \
        DORMOUSE_I_SCALARS(DORMOUSE_I_KNOWN_CASE)                                                                      \
        struct dormouse_i_array_pointer: 1,                                                                            \
        struct dormouse_i_bytes: 1,                                                                                    \
        const char *: 1,                                                                                               \
        char *: 1,                                                                                                     \
        default: __builtin_classify_type(__VA_ARGS__) == DORMOUSE_I_POINTER_CLASS &&                                   \
            (__builtin_types_compatible_p(__typeof__(DORMOUSE_I_POINTER(__VA_ARGS__)),                                 \
                                          __typeof__((void)0, DORMOUSE_I_POINTER(__VA_ARGS__))) ||                     \
             __builtin_types_compatible_p(__typeof__(DORMOUSE_I_POINTER(__VA_ARGS__)),                                 \
                                          __typeof__(*DORMOUSE_I_POINTER(__VA_ARGS__))))))

#ifndef DORMOUSE_DISABLE

#define DORMOUSE_I_DECLARE(name, label_count, labels, label_values, ...)                                               \
    DORMOUSE_I_ASSERT(DORMOUSE_I_TYPE_IS_KNOWN(__VA_ARGS__), DORMOUSE_I_UNKNOWN_TYPE);                                 \
    typedef __typeof__(DORMOUSE_I_FIELD_OF(__VA_ARGS__)) name##_dormouse_i_field_type;                                 \
    DORMOUSE_I_ASSERT(label_count == 0 || sizeof(((name##_dormouse_i_field_type *)0)->kind) <= DORMOUSE_KIND_I64,      \
                      DORMOUSE_I_NO_LABELS);
#define DORMOUSE_I_TYPE_BYTE(name, label_count, ...)                                                                   \
    sizeof(((name##_dormouse_i_field_type *)0)->kind) | (label_count == 0 ? 0 : DORMOUSE_KIND_LABELLED),
#define DORMOUSE_I_IS_FIXED(name, ...) && sizeof(((name##_dormouse_i_field_type *)0)->kind) < DORMOUSE_KIND_STR
#define DORMOUSE_I_MEMBER(name, ...) __typeof__(((name##_dormouse_i_field_type *)0)->value) name##_dormouse_i_value;
#define DORMOUSE_I_SET(name, label_count, labels, label_values, ...)                                                   \
    dormouse_i_values.name##_dormouse_i_value = (__VA_ARGS__);

/*
 *   static class = {types, level, names, values of labels}
 *   if gate(class):
 *       values = all values, packed
 *       dormouse_record_words(class, values), or dormouse_record_values if a field has no fixed size
 *
 * The values are volatile, so that compilers store them in place and do not optimise them further.
 */
#define DORMOUSE_I_EVENT(level_, field_count_, provider_, name_, ...)                                                  \
    __extension__({                                                                                                    \
        __label__ dormouse_i_armed;                                                                                    \
        DORMOUSE_I_CHECK_NAMES(field_count_, provider_, name_, __VA_ARGS__);                                           \
        DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_DECLARE, __VA_ARGS__)                                 \
        static struct {                                                                                                \
            struct dormouse_class head;                                                                                \
            uint8_t field_count, types[field_count_ + 1];                                                              \
            char names[sizeof(DORMOUSE_I_NAMES(field_count_, provider_, name_, __VA_ARGS__))];                         \
            struct dormouse_i_label_bits label_bits[DORMOUSE_I_LABEL_COUNTS(field_count_, __VA_ARGS__)];               \
        } dormouse_i_class = {                                                                                         \
            DORMOUSE_CLASS_INIT,                                                                                       \
            field_count_,                                                                                              \
            {DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_TYPE_BYTE, __VA_ARGS__) level_},                 \
            DORMOUSE_I_NAMES(field_count_, provider_, name_, __VA_ARGS__),                                             \
            {DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_OPEN_VALUES, __VA_ARGS__)}                       \
        };                                                                                                             \
        DORMOUSE_I_WHEN_ARMED(dormouse_i_class.head, {                                                                 \
            volatile struct __attribute__((packed)) {                                                                  \
                DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_MEMBER, __VA_ARGS__)                          \
                unsigned char dormouse_i_padding[7];                                                                   \
            } dormouse_i_values;                                                                                       \
            DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_SET, __VA_ARGS__)                                 \
            (1 DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_IS_FIXED, __VA_ARGS__)                         \
                 ? dormouse_record_words                                                                               \
                 : dormouse_record_values)(&dormouse_i_class.head, &dormouse_i_values, sizeof dormouse_i_values - 7);  \
        })                                                                                                             \
    })

#endif /* DORMOUSE_DISABLE */

#else /* __cplusplus */

namespace dormouse {

/* A sequence of `count` elements at `data`. */
template <class T> struct sequence {
    const T *first;
    std::size_t count;
    const T *data() const { return first; }
    std::size_t size() const { return count; }
};

template <class T> sequence<T> array(const T *data, std::size_t count)
{
    return sequence<T>{data, count};
}

namespace detail {

template <class T, class = void> struct element {
    using type = void;
};

template <class T>
struct element<T, std::void_t<decltype(std::declval<const T &>().data()), decltype(std::declval<const T &>().size())>> {
    using type = std::remove_cv_t<std::remove_pointer_t<decltype(std::declval<const T &>().data())>>;
};

/* Returns the kind of a value that is recorded unchanged; 0 for others. */
template <class T> constexpr std::uint8_t scalar_kind()
{
    if constexpr (std::is_same_v<T, bool>) {
        return DORMOUSE_KIND_BOOL;
    } else if constexpr (std::is_enum_v<T>) {
        return scalar_kind<std::underlying_type_t<T>>();
    } else if constexpr (std::is_integral_v<T> && sizeof(T) <= 8) {
        return static_cast<std::uint8_t>((std::is_signed_v<T> ? DORMOUSE_KIND_I8 : DORMOUSE_KIND_U8) +
                                         (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3));
    } else if constexpr (std::is_same_v<T, float>) {
        return DORMOUSE_KIND_F32;
    } else if constexpr (std::is_same_v<T, double>) {
        return DORMOUSE_KIND_F64;
    } else if constexpr (std::is_pointer_v<T> || std::is_null_pointer_v<T>) {
        return DORMOUSE_KIND_POINTER;
    } else {
        return 0;
    }
}

template <class T>
constexpr bool is_c_string =
    std::is_pointer_v<T> && std::is_same_v<std::remove_const_t<std::remove_pointer_t<T>>, char>;

template <class T>
constexpr bool is_string = std::is_class_v<T> && std::is_convertible_v<const T &, std::string_view>;

/* Returns the type byte of a value; 0 if it cannot be a field. */
template <class T> constexpr std::uint8_t type_byte()
{
    if constexpr (std::is_same_v<T, dormouse_i_bytes>) {
        return DORMOUSE_KIND_BYTES;
    } else if constexpr (is_c_string<T> || is_string<T>) {
        return DORMOUSE_KIND_STR;
    } else if constexpr (std::is_class_v<T>) {
        constexpr std::uint8_t kind = scalar_kind<typename element<T>::type>();
        return kind == 0 ? 0 : kind | DORMOUSE_KIND_SEQUENCE;
    } else {
        return scalar_kind<T>();
    }
}

/* Returns the type byte of an expression's type; 0 for an array that is not text, whose address would be recorded. */
template <class T> constexpr std::uint8_t field_type_byte()
{
    using type = std::remove_reference_t<T>;
    if constexpr (std::is_array_v<type> && !std::is_same_v<std::remove_cv_t<std::remove_extent_t<type>>, char>) {
        return 0;
    } else {
        return type_byte<std::decay_t<T>>();
    }
}

#ifndef DORMOUSE_DISABLE

/*
 * The class of an event: one for each tag type, shared by the translation units of an object and hidden from other
 * objects. Instances of a template have tags of their own.
 */
template <class Tag> struct __attribute__((visibility("hidden"))) event {
    static typename Tag::description event_class;
};

struct no_labels {};

/* Values of the labels of an event, of which it may have none. */
template <std::size_t Count>
using labels = std::conditional_t<Count == 0, no_labels, dormouse_i_label_bits[Count == 0 ? 1 : Count]>;

template <class Tag> typename Tag::description event<Tag>::event_class = Tag::describe();

/* Returns what is kept of a value until its record is written: the value (which needs no definition of a static
 * constant), or a view. */
template <class T, std::enable_if_t<!std::is_class_v<T>, int> = 0> constexpr T keep(T value)
{
    return value;
}

constexpr std::uint64_t keep(std::nullptr_t)
{
    return 0;
}

inline dormouse_i_bytes keep(const char *text)
{
    return {text, text ? __builtin_strlen(text) : 0};
}

/* An overload because char * would otherwise be treated as a pointer. */
inline dormouse_i_bytes keep(char *text)
{
    return keep(static_cast<const char *>(text));
}

template <class T, std::enable_if_t<std::is_class_v<T>, int> = 0> dormouse_i_bytes keep(const T &value)
{
    if constexpr (std::is_same_v<T, dormouse_i_bytes>) {
        return value;
    } else if constexpr (is_string<T>) {
        const std::string_view text = value;
        const std::size_t nul = text.find('\0');
        return {text.data(), nul == text.npos ? text.size() : nul};
    } else {
        return {value.data(), static_cast<std::size_t>(value.size())};
    }
}

/* The constructor writes a record. It is called with braces, so that the values are evaluated in order. */
struct record {
    template <class... Kept> record(const dormouse_class &event_class, Kept... values)
    {
        if constexpr (sizeof...(Kept) == 0) {
            dormouse_record_words(&event_class, nullptr, 0);
        } else {
            unsigned char bytes[(sizeof(Kept) + ... + 7)];
            std::size_t len = 0;
            ((__builtin_memcpy(bytes + len, &values, sizeof values), len += sizeof values), ...);
            if constexpr ((std::is_same_v<Kept, dormouse_i_bytes> || ...))
                dormouse_record_views(&event_class, bytes, len);
            else
                dormouse_record_words(&event_class, bytes, len);
        }
    }
};

#endif /* DORMOUSE_DISABLE */

} /* namespace detail */
} /* namespace dormouse */

#define DORMOUSE_ARRAY(pointer, count) (::dormouse::array((pointer), (count)))

#define DORMOUSE_I_TYPE_OF(...) (::dormouse::detail::field_type_byte<decltype(__VA_ARGS__)>())
#define DORMOUSE_I_TYPE_IS_KNOWN(...) (DORMOUSE_I_TYPE_OF(__VA_ARGS__) != 0)

#ifndef DORMOUSE_DISABLE

#define DORMOUSE_I_DECLARE(name, label_count, labels, label_values, ...)                                               \
    constexpr ::std::uint8_t name##_dormouse_i_type = DORMOUSE_I_TYPE_OF(__VA_ARGS__);                                 \
    static_assert(name##_dormouse_i_type != 0, DORMOUSE_I_UNKNOWN_TYPE);                                               \
    static_assert(label_count == 0 || name##_dormouse_i_type <= DORMOUSE_KIND_I64, DORMOUSE_I_NO_LABELS);
#define DORMOUSE_I_TYPE_BYTE(name, label_count, ...)                                                                   \
    name##_dormouse_i_type | (label_count == 0 ? 0 : DORMOUSE_KIND_LABELLED),
#define DORMOUSE_I_KEEP(name, label_count, labels, label_values, ...) , ::dormouse::detail::keep(__VA_ARGS__)

/*
 *   types = those of the values, outside the tag, because a local class has no access to `this`
 *   tag = {types, level, names, values of labels}
 *   if gate(class of tag):
 *       record{class of tag, keep(value)…}        one expression, so that temporaries live until the end
 */
#define DORMOUSE_I_EVENT(level_, field_count_, provider_, name_, ...)                                                  \
    __extension__({                                                                                                    \
        __label__ dormouse_i_armed;                                                                                    \
        DORMOUSE_I_CHECK_NAMES(field_count_, provider_, name_, __VA_ARGS__);                                           \
        DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_DECLARE, __VA_ARGS__)                                 \
        struct dormouse_i_tag {                                                                                        \
            struct description {                                                                                       \
                dormouse_class head;                                                                                   \
                ::std::uint8_t field_count, types[field_count_ + 1];                                                   \
                char names[sizeof(DORMOUSE_I_NAMES(field_count_, provider_, name_, __VA_ARGS__))];                     \
                ::dormouse::detail::labels<DORMOUSE_I_LABEL_COUNTS(field_count_, __VA_ARGS__)> label_bits;             \
            };                                                                                                         \
            static constexpr description describe()                                                                    \
            {                                                                                                          \
                return {DORMOUSE_CLASS_INIT, field_count_,                                                             \
                        {DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_TYPE_BYTE, __VA_ARGS__) level_},     \
                        DORMOUSE_I_NAMES(field_count_, provider_, name_, __VA_ARGS__),                                 \
                        {DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_OPEN_VALUES, __VA_ARGS__)}};         \
            }                                                                                                          \
        };                                                                                                             \
        using dormouse_i_event = ::dormouse::detail::event<dormouse_i_tag>;                                            \
        DORMOUSE_I_WHEN_ARMED(dormouse_i_event::event_class.head, {                                                    \
            ::dormouse::detail::record{dormouse_i_event::event_class.head                                              \
                                           DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_KEEP, __VA_ARGS__)};\
        })                                                                                                             \
    })

#endif /* DORMOUSE_DISABLE */

#endif /* __cplusplus */

#ifdef DORMOUSE_DISABLE

#define DORMOUSE_I_USE(name, label_count, labels, label_values, ...)                                                   \
    DORMOUSE_I_ASSERT(DORMOUSE_I_TYPE_IS_KNOWN(__VA_ARGS__), DORMOUSE_I_UNKNOWN_TYPE);                                 \
    (void)(__VA_ARGS__);

#define DORMOUSE_I_EVENT(level_, field_count_, provider_, name_, ...)                                                  \
    do {                                                                                                               \
        DORMOUSE_I_CHECK_NAMES(field_count_, provider_, name_, __VA_ARGS__);                                           \
        if (0) {                                                                                                       \
            (void)(level_);                                                                                            \
            DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count_)(DORMOUSE_I_USE, __VA_ARGS__)                                 \
        }                                                                                                              \
    } while (0)

#endif /* DORMOUSE_DISABLE */
/* clang-format on */

#define DORMOUSE_EVENT(...)                                                                                            \
    DORMOUSE_I_EVENT_COUNTED(0, DORMOUSE_I_FIELD_COUNT(__VA_ARGS__), __VA_ARGS__, dormouse_i_end)
/* The level is pasted here, where it is not expanded yet: a program may have a macro DEBUG. */
#define DORMOUSE_EVENT_LEVEL(level, ...)                                                                               \
    DORMOUSE_I_EVENT_COUNTED((DORMOUSE_LEVEL_##level + 1), DORMOUSE_I_FIELD_COUNT(__VA_ARGS__), __VA_ARGS__,           \
                             dormouse_i_end)
#define DORMOUSE_I_EVENT_COUNTED(level, field_count, provider, name, ...)                                              \
    DORMOUSE_I_EVENT_OF(level, field_count, provider,                                                                  \
                        name DORMOUSE_I_CAT(DORMOUSE_I_MAP_, field_count)(DORMOUSE_I_WHOLE, __VA_ARGS__),              \
                        dormouse_i_end)
#define DORMOUSE_I_EVENT_OF(level, field_count, ...) DORMOUSE_I_EVENT(level, field_count, __VA_ARGS__)

#endif
