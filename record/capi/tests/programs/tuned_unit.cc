// A C++ unit of the tuned program; compiled alone, its plugin.
#define TUNED_AGAIN
#ifndef TUNED_PLUGIN
#include "tuned.h"

namespace tuned {
static unsigned char level = 2;
static long limits[2] = {-1, 7};
static auto &limit = limits[1];
static constexpr int least = 0;
DORMOUSE_TUNABLE_RANGE(level, "cpp.level", "of the log", least, 3);
static double share = 0.25;
DORMOUSE_TUNABLE_RANGE(share, "cpp.share", "", 0.0, 1.0);
static bool polite = true;
DORMOUSE_TUNABLE(polite, "cpp.polite", "");
} // namespace tuned

int cpp_level()
{
    tuned::limit = tuned::share > 2 || !tuned::polite;
    return *const_cast<const volatile unsigned char *>(&tuned::level);
}
#else
#include <dormouse/tunable.h>

static int twin = 2;
DORMOUSE_TUNABLE(twin, "twin", "of the plugin");
static unsigned depth = 9;
DORMOUSE_TUNABLE(depth, "plugin.depth", "how deep");
static dormouse_static_key loud = DORMOUSE_STATIC_KEY_INIT_ENABLED;
DORMOUSE_TUNABLE_KEY(loud, "plugin.loud", "");
#endif
