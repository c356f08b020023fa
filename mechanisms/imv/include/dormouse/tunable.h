/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Tunables for C11 and C++11 (gcc and clang): immediate values and static keys that a program exports to its operators.
 *
 *     DORMOUSE_TUNABLE_RANGE(batch_size, "server.batch_size", "requests handled at once", 1, 1024);
 *     DORMOUSE_TUNABLE(scale, "server.scale", "factor of all prices");
 *     DORMOUSE_TUNABLE_KEY(audit, "server.audit", "note who asks for what");
 *
 *     int main(void) { imv_listen(); ... }
 *
 *     $ dormouse imv list PROGRAM
 *     $ dormouse imv set PROGRAM server.batch_size 64 server.audit on
 *
 * Use these macros at file scope, after the definition or the declaration. batch_size and scale are variables of type
 * bool, an integer type, float or double that only the library changes, aligned to their size; audit is a struct
 * dormouse_static_key. All of them belong to the object (program or shared library) that exports them. The type is
 * inferred. Name and description are literals: 1 to 255 visible ASCII characters without blanks, and one line of UTF-8;
 * a variable with an invalid name is not shown. A name should be unique in the process: two variables with one name are
 * both shown, and neither can be set.
 *
 * The range limits the values that operators may set, not the program itself. A key that the program has enabled more
 * than once cannot be switched off.
 *
 * Link with -ldormouse_imv, also if DORMOUSE_GENERIC is defined, and call imv_listen() to let operators in. Or link with
 * -ldormouse, which contains it: programs with a tracer are reached without that call too, as soon as they pass a
 * tracepoint. With DORMOUSE_DISABLE defined there are no tunables, and no library is needed. With DORMOUSE_NO_SHORT_NAMES
 * defined there are only the names with DORMOUSE_ or dormouse_ in front.
 */
#ifndef DORMOUSE_TUNABLE_H
#define DORMOUSE_TUNABLE_H

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include <dormouse/abi/tunable.h>

#ifndef DORMOUSE_DISABLE
#include <dormouse/static_key.h>
#endif

#ifdef __cplusplus
#include <limits>
#include <type_traits>
#else
#include <float.h>
#endif

#ifdef DORMOUSE_DISABLE

#ifdef __cplusplus
#define DORMOUSE_I_TUNABLE_NOTHING(name) static_assert(sizeof(name) > 0, "")
#else
#define DORMOUSE_I_TUNABLE_NOTHING(name) _Static_assert(sizeof(name) > 0, "")
#endif
#define DORMOUSE_TUNABLE(name, text, description) DORMOUSE_I_TUNABLE_NOTHING(name)
#define DORMOUSE_TUNABLE_RANGE(name, text, description, least, greatest) DORMOUSE_I_TUNABLE_NOTHING(name)
#define DORMOUSE_TUNABLE_KEY(name, text, description) DORMOUSE_I_TUNABLE_NOTHING(name)

static inline int dormouse_imv_listen(void)
{
    return -ENOSYS;
}

static inline int dormouse_imv_stop_listening(void)
{
    return 0;
}

#else

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Lets the program's user and root list and set the tunables of this process and of children that it forks, from now on.
 * A thread sleeps on a socket that only they can use, in the directory dormouse of XDG_RUNTIME_DIR, or in
 * /tmp/dormouse-UID. No other thread waits for an operator. Without this call, libdormouse_imv has no thread and no
 * socket. A second call changes nothing. A shared library that contains libdormouse_imv.a is not unloaded afterwards.
 *
 * Errors: -EPERM DORMOUSE_LISTEN=0 is set, or the program has privileges that its caller does not have; -EIO no thread
 * can be started, or there is no directory for the socket; -ENOSYS with DORMOUSE_DISABLE. MT-safe; blocks until the
 * socket can be found, for at most a second; not async-signal-safe.
 */
int dormouse_imv_listen(void);

/*
 * Ends that, thread and socket. A program calls it before it enters a sandbox.
 *
 * Errors: -ETIMEDOUT an answer takes more than five seconds; others if the directory of the socket is not accessible.
 * MT-safe, blocking; not async-signal-safe.
 */
int dormouse_imv_stop_listening(void);

/*
 * dormouse_register_tunables starts the tracer if the library has one, and adds the tunables of an object, bounded by its
 * dormouse_tunables section. dormouse_unregister_tunables forgets them. This header's constructor and destructor call
 * these functions. Registering the same start again changes nothing.
 *
 * Errors: -EDEADLK called by a signal handler that interrupted an update of the same thread; -ENOSPC too many objects,
 * so the tunables of this one are not shown. MT-safe, blocking: unregistering waits for a thread that sets a tunable.
 */
int dormouse_register_tunables(const struct dormouse_tunable_record *start, const struct dormouse_tunable_record *stop);
int dormouse_unregister_tunables(const struct dormouse_tunable_record *start);

/* Tells the linker to keep records, because no code refers to them. */
#if defined(__has_attribute)
#if __has_attribute(retain)
#define DORMOUSE_I_TUNABLE_RETAIN __attribute__((retain))
#define DORMOUSE_I_TUNABLE_FLAGS "awR"
#endif
#endif
#ifndef DORMOUSE_I_TUNABLE_RETAIN
#define DORMOUSE_I_TUNABLE_RETAIN
#define DORMOUSE_I_TUNABLE_FLAGS "aw"
#endif

DORMOUSE_I_RECORDS(tunables, DORMOUSE_I_TUNABLE_FLAGS, dormouse_tunable_record, constructor, destructor,
                   dormouse_register_tunables, dormouse_unregister_tunables)

#ifdef __cplusplus
} /* extern "C" */

namespace dormouse {
namespace detail {

/* Properties of a variable's type: type number, widest related type, minimum and maximum. */
template <class T> struct tunable {
    static_assert(std::is_arithmetic<T>::value && sizeof(T) <= 8, "a tunable is a bool, an integer, a float or a double");
    typedef typename std::conditional<
        std::is_floating_point<T>::value, double,
        typename std::conditional<std::is_signed<T>::value, int64_t, uint64_t>::type>::type widest;
    static constexpr uint32_t width_log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
    static constexpr uint32_t type =
        std::is_same<T, bool>::value         ? DORMOUSE_TUNABLE_TYPE_BOOL
        : std::is_floating_point<T>::value   ? DORMOUSE_TUNABLE_TYPE_F32 + width_log2 - 2
        : std::is_signed<T>::value           ? DORMOUSE_TUNABLE_TYPE_I8 + width_log2
                                             : DORMOUSE_TUNABLE_TYPE_U8 + width_log2;
    static constexpr widest least = static_cast<widest>(std::numeric_limits<T>::lowest());
    static constexpr widest greatest = static_cast<widest>(std::numeric_limits<T>::max());
    static constexpr bool holds(widest min, widest max) { return least <= min && min <= max && max <= greatest; }
};

} /* namespace detail */
} /* namespace dormouse */

#define DORMOUSE_I_TUNABLE_OF(name) ::dormouse::detail::tunable<std::remove_cv<decltype(name)>::type>
#define DORMOUSE_I_TUNABLE_TYPE(name) (DORMOUSE_I_TUNABLE_OF(name)::type)
#define DORMOUSE_I_TUNABLE_WIDEST(name) DORMOUSE_I_TUNABLE_OF(name)::widest
#define DORMOUSE_I_TUNABLE_LEAST(name) (DORMOUSE_I_TUNABLE_OF(name)::least)
#define DORMOUSE_I_TUNABLE_GREATEST(name) (DORMOUSE_I_TUNABLE_OF(name)::greatest)
#define DORMOUSE_I_TUNABLE_WIDEN(name, value) static_cast<DORMOUSE_I_TUNABLE_WIDEST(name)>(value)
#define DORMOUSE_I_TUNABLE_ADDRESS(name) const_cast<void *>(static_cast<const volatile void *>(&(name)))
#define DORMOUSE_I_TUNABLE_CHECK(name, min, max)                                                                       \
    static_assert(DORMOUSE_I_TUNABLE_OF(name)::holds(DORMOUSE_I_TUNABLE_WIDEN(name, min),                              \
                                                     DORMOUSE_I_TUNABLE_WIDEN(name, max)),                             \
                  "the range of a tunable holds no value, or one that its type does not")
#define DORMOUSE_I_TUNABLE_CHECK_KEY(name)                                                                               \
    static_assert(std::is_same<std::remove_cv<decltype(name)>::type, struct dormouse_static_key>::value,               \
                  "DORMOUSE_TUNABLE_KEY is for a struct dormouse_static_key")

#else

/* Selects one argument by type. char is like signed or unsigned char, as the compiler defines, and long has the width
 * of another type. */
#define DORMOUSE_I_TUNABLE_CHOOSE(name, boolean, unsigned_integer, signed_integer, single_float, double_float)         \
    _Generic((name), _Bool                                                                                             \
             : boolean, char                                                                                           \
             : DORMOUSE_I_TUNABLE_CHAR(unsigned_integer, signed_integer), signed char                                  \
             : signed_integer, unsigned char                                                                           \
             : unsigned_integer, short                                                                                 \
             : signed_integer, unsigned short                                                                          \
             : unsigned_integer, int                                                                                   \
             : signed_integer, unsigned                                                                                \
             : unsigned_integer, long                                                                                  \
             : signed_integer, unsigned long                                                                           \
             : unsigned_integer, long long                                                                             \
             : signed_integer, unsigned long long                                                                      \
             : unsigned_integer, float                                                                                 \
             : single_float, double                                                                                    \
             : double_float)
#if CHAR_MIN < 0
#define DORMOUSE_I_TUNABLE_CHAR(unsigned_integer, signed_integer) signed_integer
#else
#define DORMOUSE_I_TUNABLE_CHAR(unsigned_integer, signed_integer) unsigned_integer
#endif

#define DORMOUSE_I_TUNABLE_BITS(name) (8 * sizeof(name))
#define DORMOUSE_I_TUNABLE_WIDTH_LOG2(name) (sizeof(name) == 1 ? 0 : sizeof(name) == 2 ? 1 : sizeof(name) == 4 ? 2 : 3)
#define DORMOUSE_I_TUNABLE_SIGNED_MAX(name) (INT64_MAX >> (64 - DORMOUSE_I_TUNABLE_BITS(name)))
#define DORMOUSE_I_TUNABLE_TYPE(name)                                                                                  \
    DORMOUSE_I_TUNABLE_CHOOSE(name, DORMOUSE_TUNABLE_TYPE_BOOL,                                                        \
                              DORMOUSE_TUNABLE_TYPE_U8 + DORMOUSE_I_TUNABLE_WIDTH_LOG2(name),                          \
                              DORMOUSE_TUNABLE_TYPE_I8 + DORMOUSE_I_TUNABLE_WIDTH_LOG2(name),                          \
                              DORMOUSE_TUNABLE_TYPE_F32, DORMOUSE_TUNABLE_TYPE_F64)
#define DORMOUSE_I_TUNABLE_WIDEST(name)                                                                                \
    __typeof__(DORMOUSE_I_TUNABLE_CHOOSE(name, (uint64_t)0, (uint64_t)0, (int64_t)0, 0.0, 0.0))
#define DORMOUSE_I_TUNABLE_LEAST(name)                                                                                 \
    DORMOUSE_I_TUNABLE_CHOOSE(name, 0, 0, -DORMOUSE_I_TUNABLE_SIGNED_MAX(name) - 1, -FLT_MAX, -DBL_MAX)
#define DORMOUSE_I_TUNABLE_GREATEST(name)                                                                              \
    DORMOUSE_I_TUNABLE_CHOOSE(name, 1, UINT64_MAX >> (64 - DORMOUSE_I_TUNABLE_BITS(name)),                             \
                              DORMOUSE_I_TUNABLE_SIGNED_MAX(name), FLT_MAX, DBL_MAX)
#define DORMOUSE_I_TUNABLE_WIDEN(name, value) ((DORMOUSE_I_TUNABLE_WIDEST(name))(value))
#define DORMOUSE_I_TUNABLE_ADDRESS(name) ((void *)&(name))

/* Ranges of floats are checked when a value is set, because C has no integer constant expressions with floats. */
#define DORMOUSE_I_TUNABLE_HOLDS(name, min, max)                                                                       \
    ((DORMOUSE_I_TUNABLE_WIDEN(name, DORMOUSE_I_TUNABLE_LEAST(name)) <= DORMOUSE_I_TUNABLE_WIDEN(name, min)) &         \
     (DORMOUSE_I_TUNABLE_WIDEN(name, min) <= DORMOUSE_I_TUNABLE_WIDEN(name, max)) &                                    \
     (DORMOUSE_I_TUNABLE_WIDEN(name, max) <= DORMOUSE_I_TUNABLE_WIDEN(name, DORMOUSE_I_TUNABLE_GREATEST(name))))
#define DORMOUSE_I_TUNABLE_CHECK(name, min, max)                                                                       \
    _Static_assert(DORMOUSE_I_TUNABLE_CHOOSE(name, DORMOUSE_I_TUNABLE_HOLDS(name, min, max),                           \
                                             DORMOUSE_I_TUNABLE_HOLDS(name, min, max),                                 \
                                             DORMOUSE_I_TUNABLE_HOLDS(name, min, max), 1, 1),                          \
                   "the range of a tunable holds no value, or one that its type does not")
#define DORMOUSE_I_TUNABLE_CHECK_KEY(name)                                                                             \
    _Static_assert(_Generic((name), struct dormouse_static_key : 1, default : 0),                                      \
                   "DORMOUSE_TUNABLE_KEY is for a struct dormouse_static_key")

#endif /* __cplusplus */

/* A struct dormouse_tunable_record whose limits have their own type. Its alignment is given explicitly, because
 * compilers otherwise align large structures further. */
#define DORMOUSE_I_TUNABLE(name, text, description, type, widest, least, greatest)                                     \
    static struct {                                                                                                    \
        const char *dormouse_i_name, *dormouse_i_description;                                                          \
        void *dormouse_i_variable;                                                                                     \
        uint32_t dormouse_i_value_type, dormouse_i_reserved;                                                           \
        widest dormouse_i_min, dormouse_i_max;                                                                         \
    } dormouse_i_tunable_##name                                                                                        \
        __attribute__((used, section("dormouse_tunables"), aligned(__alignof__(struct dormouse_tunable_record))))      \
        DORMOUSE_I_TUNABLE_RETAIN = {"" text, "" description, DORMOUSE_I_TUNABLE_ADDRESS(name), type, 0, least, greatest}

#define DORMOUSE_TUNABLE(name, text, description)                                                                      \
    DORMOUSE_I_TUNABLE(name, text, description, DORMOUSE_I_TUNABLE_TYPE(name), DORMOUSE_I_TUNABLE_WIDEST(name),        \
                       DORMOUSE_I_TUNABLE_WIDEN(name, DORMOUSE_I_TUNABLE_LEAST(name)),                                 \
                       DORMOUSE_I_TUNABLE_WIDEN(name, DORMOUSE_I_TUNABLE_GREATEST(name)))
#define DORMOUSE_TUNABLE_RANGE(name, text, description, least, greatest)                                               \
    DORMOUSE_I_TUNABLE_CHECK(name, least, greatest);                                                                   \
    DORMOUSE_I_TUNABLE(name, text, description, DORMOUSE_I_TUNABLE_TYPE(name), DORMOUSE_I_TUNABLE_WIDEST(name),        \
                       DORMOUSE_I_TUNABLE_WIDEN(name, least), DORMOUSE_I_TUNABLE_WIDEN(name, greatest))
#define DORMOUSE_TUNABLE_KEY(name, text, description)                                                                  \
    DORMOUSE_I_TUNABLE_CHECK_KEY(name);                                                                                \
    DORMOUSE_I_TUNABLE(name, text, description, DORMOUSE_TUNABLE_TYPE_KEY, uint64_t, 0, 1)

#endif /* DORMOUSE_DISABLE */

#ifndef DORMOUSE_NO_SHORT_NAMES
#define imv_listen() dormouse_imv_listen()
#define imv_stop_listening() dormouse_imv_stop_listening()
#endif

#endif
