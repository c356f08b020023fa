/* A plugin that reads and sets values that another plugin defines. */
#include "values.h"

IMPORT_IMV(long, of_plugin);
IMPORT_STATIC_KEY(key_of_plugin);

/* Returns 0, or the number of the check that failed. */
PUBLIC int plugin_use(void);
int plugin_use(void)
{
    if (imv_read(of_plugin) != 1 || !static_branch_likely(&key_of_plugin))
        return 1;
    if (imv_set(of_plugin, 1L << 40) || static_branch_dec(&key_of_plugin))
        return 2;
    if (imv_read(of_plugin) != 1L << 40 || static_branch_likely(&key_of_plugin))
        return 3;
    if (static_branch_dec(&key_of_plugin) != -EINVAL)
        return 4;
    if (imv_set(of_plugin, 1) || static_branch_inc(&key_of_plugin) || static_branch_inc(&key_of_plugin))
        return 5;
    if (imv_read(of_plugin) != 1 || !static_branch_unlikely(&key_of_plugin))
        return 6;
    return static_branch_dec(&key_of_plugin);
}
