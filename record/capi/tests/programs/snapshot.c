/*
 * A program that requests snapshots.
 *
 *   snapshot NOWHERE       outside a session: the results of the calls
 *   snapshot take DIR      100 events, a snapshot into DIR, 100 more, one beside the session's trace
 *   snapshot abort         100 events, and an end that triggers a snapshot
 */
#include <dormouse/event.h>
#include <dormouse/snapshot.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void emit(int from)
{
    int number;
    for (number = from; number < from + 100; number++)
        DORMOUSE_EVENT(test, step, (number, number));
}

static int refused(void)
{
    struct dormouse_snapshot_options options = {"\xff", 0, 0};
    struct dormouse_snapshot taken;
    if (dormouse_snapshot(NULL, NULL) != -ENOTCONN || dormouse_snapshot(NULL, &taken) != -ENOTCONN)
        return 1;
    if (!strstr(taken.error, "in no session") || taken.dir[0] || taken.events)
        return 2;
    if (dormouse_snapshot(&options, &taken) != -EINVAL || !strstr(taken.error, "UTF-8"))
        return 3;
    if (dormouse_snapshot_on("") != -EINVAL || dormouse_snapshot_on("exit,KILL") != -EINVAL ||
        dormouse_snapshot_on("panic") != -EINVAL)
        return 4;
    return 0;
}

static int take(const char *dir)
{
    struct dormouse_snapshot_options options = {NULL, 0, 0};
    struct dormouse_snapshot taken;
    options.dir = dir;
    emit(0);
    if (dormouse_snapshot(&options, &taken) != 0) {
        fprintf(stderr, "%s\n", taken.error);
        return 1;
    }
    if (strcmp(taken.dir, dir) != 0 || taken.error[0] || taken.events != 100 || taken.bytes == 0)
        return 2;
    /* The directory is not empty any more. */
    if (dormouse_snapshot(&options, &taken) != -EIO || !strstr(taken.error, "is not empty"))
        return 3;
    emit(100);
    if (dormouse_snapshot(NULL, &taken) != 0 || taken.events != 200)
        return 4;
    puts(taken.dir);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "take") == 0)
        return take(argv[2]);
    if (argc > 1 && strcmp(argv[1], "abort") == 0) {
        if (dormouse_snapshot_on("crash, USR2") != 0)
            return 1;
        emit(0);
        abort();
    }
    return refused();
}
