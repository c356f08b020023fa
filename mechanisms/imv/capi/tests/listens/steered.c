/* A program in C or C++ that the test lists and sets: it does what each line of its input says. */
#include <dormouse/imv.h>
#include <dormouse/tunable.h>
#ifdef WITH_EVENTS
#include <dormouse/event.h>
#endif
#ifndef WITHOUT_PLUGINS
#include <dlfcn.h>
#endif
#include <stdio.h>
#include <unistd.h>

DEFINE_IMV(unsigned, batch) = 16;
DEFINE_STATIC_IMV(double, ratio) = 0.5;
DEFINE_STATIC_KEY(audit);
DEFINE_STATIC_KEY_TRUE(cached);
DORMOUSE_TUNABLE_RANGE(batch, "c.batch", "requests at once", 1, 1024);
DORMOUSE_TUNABLE_RANGE(ratio, "c.ratio", "of something", 0.0, 1.0);
DORMOUSE_TUNABLE_KEY(audit, "c.audit", "note who asks");
DORMOUSE_TUNABLE_KEY(cached, "c.cached", "answer from the cache");

int main(int argc, char **argv)
{
    char line[64];
    void *plugin = NULL;
    if (argc < 2)
        return 2;
#ifdef WITH_EVENTS
    DORMOUSE_EVENT(steered, started);
#endif
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "listen\n"))
            printf("%d\n", imv_listen());
        else if (!strcmp(line, "stop\n"))
            printf("%d\n", imv_stop_listening());
#ifndef WITHOUT_PLUGINS
        else if (!strcmp(line, "open\n"))
            puts((plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) ? "opened" : dlerror());
        else if (!strcmp(line, "close\n"))
            puts(plugin && !dlclose(plugin) ? "closed" : "not closed");
#endif
        else
            printf("%u %g %d %d\n", imv_read(batch), imv_read(ratio), static_branch_unlikely(&audit),
                   static_branch_likely(&cached));
        fflush(stdout);
    }
    (void)argv;
    (void)plugin;
    return 0;
}
