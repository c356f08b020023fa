/* Defines and exports the values, and reads them. */
#include "values.h"

EACH_VALUE(DEFINE)
DEFINE_STATIC_KEY_FALSE(key);
EXPORT_STATIC_KEY(key);

#include "reads.h"

int twice(int value)
{
    return 2 * value;
}

int thrice(int value)
{
    return 3 * value;
}

PUBLIC int library_differing(int is_second);
int library_differing(int is_second)
{
    return differing(is_second);
}

PUBLIC int library_set(int is_second);
int library_set(int is_second)
{
    return set_all(is_second);
}
