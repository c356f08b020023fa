/* One variable or key for each kind of site. */
#include <dormouse/imv.h>
#include <stdint.h>

#define EACH_NEAR(X)                                                                                                   \
    X(value_u8, uint8_t, 0x11)                                                                                         \
    X(value_i8, int8_t, -2)                                                                                            \
    X(value_u16, uint16_t, 0x2222)                                                                                     \
    X(value_i16, int16_t, -2)                                                                                          \
    X(value_u32, uint32_t, 0x33333333)                                                                                 \
    X(value_f32, float, 1.0F)                                                                                          \
    X(value_u64, uint64_t, UINT64_C(0x4444444444444444))                                                               \
    X(value_f64, double, 1.0)
#define EACH_IMPORTED(X)                                                                                               \
    X(imported_u8, uint8_t, 0x11)                                                                                      \
    X(imported_u16, uint16_t, 0x2222)                                                                                  \
    X(imported_u32, uint32_t, 0x33333333)                                                                              \
    X(imported_u64, uint64_t, UINT64_C(0x4444444444444444))
