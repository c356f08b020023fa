/* Definitions that the test's objects share: values of every type, each with its initial value and another one. */
#ifndef VALUES_H
#define VALUES_H

#include <dormouse/imv.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
#define PUBLIC extern "C" __attribute__((visibility("default")))
#else
#define PUBLIC extern __attribute__((visibility("default")))
#endif

enum level { LOW = -1, MIDDLE = 1, HIGH = 300 };
typedef int (*function)(int);

PUBLIC int twice(int value);
PUBLIC int thrice(int value);

#define EACH_VALUE(X)                                                                                                  \
    X(u8, uint8_t, 3, 255)                                                                                             \
    X(i8, int8_t, -3, INT8_MIN)                                                                                        \
    X(u16, uint16_t, 300, UINT16_MAX)                                                                                  \
    X(i16, int16_t, -300, INT16_MIN)                                                                                   \
    X(u32, uint32_t, 70000, UINT32_MAX)                                                                                \
    X(i32, int32_t, -70000, INT32_MIN)                                                                                 \
    X(u64, uint64_t, UINT64_C(0x0123456789ABCDEF), UINT64_MAX)                                                         \
    X(i64, int64_t, -2, INT64_MIN)                                                                                     \
    X(flag, bool, false, true)                                                                                         \
    X(letter, char, 'a', 'z')                                                                                          \
    X(level, enum level, MIDDLE, LOW)                                                                                  \
    X(f32, float, 0.5F, -1.5F)                                                                                         \
    X(f64, double, 0.1, -1e300)                                                                                        \
    X(pointer, const char *, NULL, (const char *)UINTPTR_MAX)                                                          \
    X(step, function, twice, thrice)

#define DEFINE(name, type, first, second)                                                                              \
    DEFINE_IMV(type, name) = first;                                                                                    \
    EXPORT_IMV_SYMBOL(name);
#define DECLARE(name, type, first, second) DECLARE_IMV(type, name);
#define IMPORT(name, type, first, second) IMPORT_IMV(type, name);

#define DIFFERS(name, type, first, second)                                                                             \
    differ += imv_read(name) != (type)(is_second ? second : first);                                                    \
    differ += _imv_read(name) != (type)(is_second ? second : first);
#define CHANGE(name, type, first, second) IMV_CHANGE(name, (is_second ? second : first)),

#endif
