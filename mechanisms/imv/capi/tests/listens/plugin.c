/* A plugin with a value, which listens if it is asked to. */
#include <dormouse/imv.h>
#include <dormouse/tunable.h>

DEFINE_STATIC_IMV(int, depth) = 9;
DORMOUSE_TUNABLE(depth, "plugin.depth", "how deep");

#ifdef __cplusplus
extern "C" {
#endif
int plugin_listen(void);
int plugin_depth(void);
#ifdef __cplusplus
}
#endif

int plugin_listen(void)
{
    return imv_listen();
}

int plugin_depth(void)
{
    return imv_read(depth);
}
