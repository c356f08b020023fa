/* Reads the values of its own object, which another unit defines. */
#include "values.h"

EACH_VALUE(DECLARE)
DECLARE_STATIC_KEY(key);

#include "reads.h"

PUBLIC int second_differing(int is_second);
int second_differing(int is_second)
{
    return differing(is_second);
}
