/* Takes the part of another object. */
#include "sites.h"

#define DEFINE(name, type, value)                                                                                      \
    DEFINE_IMV(type, name) = value;                                                                                    \
    EXPORT_IMV_SYMBOL(name);
EACH_IMPORTED(DEFINE)
DEFINE_STATIC_KEY(imported_branch);
EXPORT_STATIC_KEY(imported_branch);
