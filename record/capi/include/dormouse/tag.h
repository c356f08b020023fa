/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tags, for C11 and C++11: values that a thread gives to all of its events, such as the request that it works on.
 *
 *     void serve(uint64_t id, const char *user)
 *     {
 *         DORMOUSE_TAG(request, id);               until the block ends; then the former value returns
 *         DORMOUSE_TAG(user, user);
 *         DORMOUSE_EVENT(http, begin);
 *     }
 *
 * Sessions record the tags that they ask for: dormouse record --context tag.request,tag.user. Each event then has a
 * value of 64 bits for each of them, 0 if its thread has no such tag. The value of DORMOUSE_TAG is an unsigned integer or
 * a text, of which traces have the first 255 bytes; in C++17 a text is also a std::string_view.
 *
 * A process has at most four tags, by their names: those that are set first. Names are C identifiers of ASCII letters,
 * digits and _, of at most 31 bytes.
 *
 * DORMOUSE_TAG is a declaration, allowed where a variable of the block is. It is MT-safe, and not async-signal-safe. When
 * it is first used, it takes a lock and looks the name up, and so does a text that is new to the process. With
 * DORMOUSE_DISABLE defined, it generates no code, and its value is not evaluated.
 */
#ifndef DORMOUSE_TAG_H
#define DORMOUSE_TAG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <cstring>
#if __cplusplus >= 201703L
#include <string_view>
#endif
#include <type_traits>
extern "C" {
#endif

/* A tag of static storage. The library uses what follows the name, which is 0 at first. */
struct dormouse_tag {
    const char *name;
    uint64_t known;
};

/* Values of a thread's tags. */
struct dormouse_tags {
    uint64_t values[4];
};

/*
 * Sets a tag in the calling thread, and returns its former value: 0 if the thread had none, or if the process has four
 * other tags. MT-safe; async-signal-safe unless it is the first call with this tag.
 */
uint64_t dormouse_tag_set(struct dormouse_tag *tag, uint64_t value);

/* Returns the value that represents a text of this tag; the text need not end in NUL. MT-safe, blocking if the text is new. */
uint64_t dormouse_tag_text(struct dormouse_tag *tag, const char *text, size_t len);

/*
 * Copies the calling thread's tags, and sets them: for another thread that goes on with the same work. MT-safe,
 * async-signal-safe.
 */
void dormouse_tags_get(struct dormouse_tags *tags);
void dormouse_tags_set(const struct dormouse_tags *tags);

#ifdef __cplusplus
} /* extern "C" */
#endif

#define DORMOUSE_I_TAG_CAT(a, b) DORMOUSE_I_TAG_CAT_EXPANDED(a, b)
#define DORMOUSE_I_TAG_CAT_EXPANDED(a, b) a##b

#ifdef DORMOUSE_DISABLE
#define DORMOUSE_TAG(tag_name, value)                                                                                  \
    enum { DORMOUSE_I_TAG_CAT(dormouse_i_no_tag_, __COUNTER__) = sizeof(value) != 0 }
#else
#define DORMOUSE_TAG(tag_name, value) DORMOUSE_I_TAG_OF(__COUNTER__, tag_name, value)
#define DORMOUSE_I_TAG_OF(number, tag_name, value)                                                                     \
    DORMOUSE_I_TAG(DORMOUSE_I_TAG_CAT(dormouse_i_tag_, number), DORMOUSE_I_TAG_CAT(dormouse_i_scope_, number),         \
                   tag_name, value)
#endif

#ifdef __cplusplus

#define DORMOUSE_I_TAG(tag, scope, tag_name, value)                                                                    \
    static_assert(sizeof(#tag_name) <= 32, "the name of a tag has at most 31 bytes");                                  \
    static ::dormouse_tag tag = {#tag_name, 0};                                                                        \
    ::dormouse_i_tag_scope scope(tag, value)

/* Sets a tag, and then its former value. */
struct dormouse_i_tag_scope {
    template <typename Value,
              typename = typename std::enable_if<std::is_integral<Value>::value || std::is_enum<Value>::value>::type>
    dormouse_i_tag_scope(dormouse_tag &tag, Value value)
        : tag(tag), former(dormouse_tag_set(&tag, static_cast<uint64_t>(value)))
    {
    }
    dormouse_i_tag_scope(dormouse_tag &tag, const char *text)
        : dormouse_i_tag_scope(tag, text ? dormouse_tag_text(&tag, text, std::strlen(text)) : 0)
    {
    }
#if __cplusplus >= 201703L
    dormouse_i_tag_scope(dormouse_tag &tag, std::string_view text)
        : dormouse_i_tag_scope(tag, dormouse_tag_text(&tag, text.data(), text.size()))
    {
    }
#endif
    ~dormouse_i_tag_scope() { dormouse_tag_set(&tag, former); }
    dormouse_i_tag_scope(const dormouse_i_tag_scope &) = delete;
    dormouse_i_tag_scope &operator=(const dormouse_i_tag_scope &) = delete;

    dormouse_tag &tag;
    uint64_t former;
};

#else

#include <string.h>

/* Compilers tell a text from a number by its type. */
#define DORMOUSE_I_TAG(tag, scope, tag_name, value)                                                                    \
    _Static_assert(sizeof(#tag_name) <= 32, "the name of a tag has at most 31 bytes");                                 \
    static struct dormouse_tag tag = {#tag_name, 0};                                                                   \
    __attribute__((cleanup(dormouse_i_tag_end), unused)) struct dormouse_i_tag_scope scope = {                         \
        &tag, dormouse_tag_set(&tag, _Generic((value), char *: dormouse_i_tag_text, const char *: dormouse_i_tag_text, \
                                              default: dormouse_i_tag_number)(&tag, value))}

struct dormouse_i_tag_scope {
    struct dormouse_tag *tag;
    uint64_t former;
};

__attribute__((always_inline, unused)) static inline void dormouse_i_tag_end(struct dormouse_i_tag_scope *scope)
{
    dormouse_tag_set(scope->tag, scope->former);
}

__attribute__((always_inline, unused)) static inline uint64_t dormouse_i_tag_number(struct dormouse_tag *tag,
                                                                                    uint64_t value)
{
    (void)tag;
    return value;
}

__attribute__((always_inline, unused)) static inline uint64_t dormouse_i_tag_text(struct dormouse_tag *tag,
                                                                                  const char *text)
{
    return text ? dormouse_tag_text(tag, text, strlen(text)) : 0;
}

#endif

#endif
