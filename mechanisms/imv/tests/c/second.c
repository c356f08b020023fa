#include "units.h"

EXPORT int second_gates(void);
EXPORT int second_gates(void)
{
    int taken = helper_gate();
    if (DORMOUSE_STATIC_BRANCH(shared_key))
        taken += 100;
#ifdef __cplusplus
    taken += inline_gate() + template_gate(1);
#endif
    return taken;
}
