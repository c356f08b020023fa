/* Declarations that the two units of the test library share. */
#include <dormouse/static_key.h>

extern struct dormouse_static_key shared_key __attribute__((visibility("hidden")));

static inline int helper_gate(void)
{
    static struct dormouse_static_key key = DORMOUSE_STATIC_KEY_INIT;
    return DORMOUSE_STATIC_BRANCH(key) ? 1 : 0;
}

#ifdef __cplusplus
inline int inline_gate()
{
    struct inline_gate_key {};
    return DORMOUSE_STATIC_BRANCH(DORMOUSE_INLINE_STATIC_KEY(inline_gate_key)) ? 1 : 0;
}

template <class T> int template_gate(T)
{
    struct template_gate_key {};
    return DORMOUSE_STATIC_BRANCH(DORMOUSE_INLINE_STATIC_KEY(template_gate_key)) ? 1 : 0;
}
#define EXPORT extern "C"
#else
#define EXPORT
#endif
