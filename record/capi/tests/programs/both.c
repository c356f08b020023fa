/* A program with values of libdormouse_imv, whose library has events of libdormouse. */
#include "common.h"

#include <dormouse/imv.h>
#include <stdio.h>

DEFINE_IMV(int, rounds) = 1;

int main(void)
{
    if (imv_set(rounds, 3) != 0 || imv_read(rounds) != 3)
        return 1;
    for (int round = 0; round < imv_read(rounds); round++)
        library_unit();
    struct dormouse_imv_state state;
    if (dormouse_imv_status(&state) != 0 || state.patched != state.sites)
        return 2;
    printf("objects %zu\n", state.objects);
    return 0;
}
