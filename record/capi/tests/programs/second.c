#include "common.h"

void second_unit(void)
{
    for (int i = 0; i < 2; i++)
        DORMOUSE_EVENT(units, second, (i, i));
    shared_inline(2);
}
