/* A plugin with a value of its own, which another plugin reads. It also reads the program's values. */
#include "values.h"

EACH_VALUE(IMPORT)
IMPORT_STATIC_KEY(key);
DEFINE_IMV(long, of_plugin) = 1;
EXPORT_IMV_SYMBOL(of_plugin);
DEFINE_STATIC_KEY_TRUE(key_of_plugin);
EXPORT_STATIC_KEY(key_of_plugin);

#include "reads.h"

PUBLIC int plugin_differing(int is_second);
int plugin_differing(int is_second)
{
    return differing(is_second);
}
