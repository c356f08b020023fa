/* Reads and sets the values of another object. */
#include "values.h"

EACH_VALUE(IMPORT)
IMPORT_STATIC_KEY(key);

#include "reads.h"

PUBLIC int reader_differing(int is_second);
int reader_differing(int is_second)
{
    return differing(is_second);
}

PUBLIC int reader_set(int is_second);
int reader_set(int is_second)
{
    return set_all(is_second);
}
