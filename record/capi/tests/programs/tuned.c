/* Tunables in C: the test lists and sets them, and asks this program for the values that it reads. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tuned.h"

unsigned batch_size = 16;
static signed char offset = -3;
static unsigned short port = 80;
static long long wide = -1;
static _Bool strict;
static float ratio = 0.5f;
static double scale = 1.5;
static char letter;
static int twin = 1;
static struct dormouse_static_key audit = DORMOUSE_STATIC_KEY_INIT;

DORMOUSE_TUNABLE_RANGE(batch_size, "c.batch_size", "requests handled at once", 1, 1024);
DORMOUSE_TUNABLE_RANGE(offset, "c.offset", "", -5, 5);
DORMOUSE_TUNABLE(port, "c.port", "");
DORMOUSE_TUNABLE(wide, "c.wide", "");
DORMOUSE_TUNABLE(strict, "c.strict", "");
DORMOUSE_TUNABLE_RANGE(ratio, "c.ratio", "größer als nichts", 0.1, 0.9);
DORMOUSE_TUNABLE(scale, "c.scale", "two\nlines");
DORMOUSE_TUNABLE(letter, "c.letter", "");
DORMOUSE_TUNABLE(twin, "twin", "of the program");
DORMOUSE_TUNABLE_KEY(audit, "c.audit", "note who asks for what");
/* Not a valid name, so it is not shown. */
static int nameless;
DORMOUSE_TUNABLE(nameless, "c.has blanks", "");

#define READ(variable) (*(const volatile __typeof__(variable) *)&(variable))

int main(int argc, char **argv)
{
    char line[64];
    void *plugin = NULL;
    if (argc < 2)
        return 2;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "open\n"))
            puts((plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL)) ? "opened" : dlerror());
        else if (!strcmp(line, "close\n"))
            puts(plugin && !dlclose(plugin) ? "closed" : "not closed");
        else
            printf("%u %d %u %lld %d %g %g %d %d %d %d\n", READ(batch_size), READ(offset), READ(port), READ(wide),
                   READ(strict), (double)READ(ratio), READ(scale), READ(letter), READ(twin),
                   (int)DORMOUSE_STATIC_BRANCH(audit), cpp_level());
        fflush(stdout);
    }
    return 0;
}
