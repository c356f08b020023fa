/* With DORMOUSE_NO_SHORT_NAMES, the program may use the short names itself. Uses every macro by its long name. */
#include <dormouse/imv.h>

static int imv_read(int value)
{
    return value + 1;
}

static int static_branch_enable(int value)
{
    return value + 2;
}

DORMOUSE_DECLARE_IMV(int, defined);
DORMOUSE_DEFINE_IMV(int, defined) = 1;
DORMOUSE_EXPORT_IMV_SYMBOL(defined);
DORMOUSE_DEFINE_STATIC_IMV(long, local) = 2;
DORMOUSE_DECLARE_STATIC_KEY(key);
DORMOUSE_DEFINE_STATIC_KEY(key);
DORMOUSE_DEFINE_STATIC_KEY_TRUE(set);
DORMOUSE_DEFINE_STATIC_KEY_FALSE(clear);
DORMOUSE_EXPORT_STATIC_KEY(key);
DORMOUSE_DECLARE_STATIC_CALL(called, imv_read);
DORMOUSE_DEFINE_STATIC_CALL(called, imv_read);
DORMOUSE_DEFINE_STATIC_KEY_DEFERRED(users, key, 0);

int main(void)
{
    struct dormouse_imv_change changes[] = {
        DORMOUSE_IMV_CHANGE(defined, 3),
        DORMOUSE_STATIC_KEY_ENABLE(clear),
        DORMOUSE_STATIC_KEY_DISABLE(set),
    };
    if (imv_read(1) + static_branch_enable(1) != 5 || DORMOUSE_IMV_READ(defined) != 1)
        return 1;
    if (dormouse_imv_update(changes, 3) || DORMOUSE_IMV_SET(local, 4) || DORMOUSE_STATIC_BRANCH_ENABLE(&key))
        return 2;
    if (DORMOUSE_IMV_READ(defined) != 3 || DORMOUSE_IMV_READ_VARIABLE(local) != 4)
        return 3;
    if (!DORMOUSE_STATIC_BRANCH_LIKELY(&clear) || DORMOUSE_STATIC_BRANCH_UNLIKELY(&set))
        return 4;
    if (DORMOUSE_STATIC_CALL(called)(1) != 2 || DORMOUSE_STATIC_CALL_UPDATE(called, static_branch_enable))
        return 9;
    if (DORMOUSE_STATIC_CALL(called)(1) != 3)
        return 10;
#ifndef DORMOUSE_GENERIC
    if (!DORMOUSE_STATIC_CALL_IS_DIRECT(called))
        return 11;
#endif
    if (DORMOUSE_STATIC_KEY_ENABLED(&set) || DORMOUSE_STATIC_KEY_COUNT(&clear) != 1)
        return 5;
    if (dormouse_static_key_deferred_enable(&users) || DORMOUSE_STATIC_KEY_COUNT(&key) != 2)
        return 6;
    if (dormouse_static_key_deferred_disable(&users, 7) || dormouse_static_key_deferred_disable(&users, 7) == 0)
        return 7;
    if (dormouse_static_key_deferred_expire(&users, 7, 0) || DORMOUSE_STATIC_KEY_COUNT(&key) != 1)
        return 8;
    return DORMOUSE_STATIC_BRANCH_DISABLE(&key) || DORMOUSE_STATIC_BRANCH_UNLIKELY(&key);
}
