#include "units.h"

struct dormouse_static_key shared_key = DORMOUSE_STATIC_KEY_INIT;

EXPORT int first_gates(void);
EXPORT int first_gates(void)
{
    static struct dormouse_static_key local_key = DORMOUSE_STATIC_KEY_INIT;
    int taken = helper_gate();
    if (DORMOUSE_STATIC_BRANCH(local_key))
        taken += 10;
    if (DORMOUSE_STATIC_BRANCH(shared_key))
        taken += 100;
#ifdef __cplusplus
    taken += inline_gate() + template_gate(1) + template_gate('a');
#endif
    return taken;
}

EXPORT struct dormouse_static_key *shared_key_address(void);
EXPORT struct dormouse_static_key *shared_key_address(void)
{
    return &shared_key;
}

/* A stub for libdormouse: it records the constructor's arguments, for the test to register. */
EXPORT const struct dormouse_site_record *registered_start, *registered_stop;
const struct dormouse_site_record *registered_start, *registered_stop;
EXPORT int registered_count;
int registered_count;

int dormouse_imv_register(const struct dormouse_site_record *start, const struct dormouse_site_record *stop)
{
    registered_start = start;
    registered_stop = stop;
    registered_count += 1;
    return 0;
}

int dormouse_imv_unregister(const struct dormouse_site_record *start)
{
    registered_count -= registered_start == start;
    return 0;
}
