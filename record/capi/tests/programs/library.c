#include "common.h"

void library_unit(void)
{
    DORMOUSE_EVENT(library, called);
    shared_inline(3);
}
