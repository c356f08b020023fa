/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Snapshots of a flight recorder, for C11 and C++11: what `dormouse record --mode overwrite` holds, of all programs in the session,
 * written as a trace of its own while the session goes on.
 *
 *     struct dormouse_snapshot taken;
 *     if (elapsed_ms > 100 && dormouse_snapshot(NULL, &taken) == 0)
 *         log("slow: %s has %llu events", taken.dir, (unsigned long long)taken.events);
 *
 *     dormouse_snapshot_on("crash,exit,USR2");           one is asked for whenever one of these happens
 *
 * Link with -ldormouse.
 */
#ifndef DORMOUSE_SNAPSHOT_H
#define DORMOUSE_SNAPSHOT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DORMOUSE_SNAPSHOT_DIR_SIZE 4096
#define DORMOUSE_SNAPSHOT_ERROR_SIZE 256

/* What to take. Zeroes: everything that is retained, into a fresh directory beside the session's. */
struct dormouse_snapshot_options {
    const char *dir;    /* the trace's directory, which must not exist or be empty; NULL: beside the session's, numbered */
    uint64_t last_ns;   /* events that are older by so many nanoseconds are left out; 0: none is */
    uint64_t bytes_max; /* the newest pages up to so many bytes are taken; 0: all; goes before last_ns */
};

/* What a snapshot came to. */
struct dormouse_snapshot {
    uint64_t events;       /* in the trace */
    uint64_t bytes;        /* of its streams */
    uint64_t span_ns;      /* from its oldest event to the snapshot */
    uint64_t pages_missed; /* were overwritten before they could be copied */
    char dir[DORMOUSE_SNAPSHOT_DIR_SIZE];     /* the trace; cut where it is longer */
    char error[DORMOUSE_SNAPSHOT_ERROR_SIZE]; /* why there is none, for people; empty if there is one */
};

/*
 * Asks the session's owner for a snapshot, and waits until it is complete. Either argument may be NULL.
 *
 * Errors: -ENOTCONN  the program is in no session
 *         -EINVAL    the directory's name is not UTF-8
 *         -EIO       the owner could not be asked or refused: the session is not in overwrite mode, or the directory cannot be made;
 *                    `error` says which
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_snapshot(const struct dormouse_snapshot_options *options, struct dormouse_snapshot *taken);

/*
 * Has a snapshot asked for, without waiting for it, whenever something in a list such as "crash,exit,USR2" happens: "crash" (SIGSEGV,
 * SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS and SIGABRT; the program then ends as it would have), "exit", a signal, by name or
 * number, whose former handler still runs, "event:shop:order_failed" (an armed event occurs; `*` and `?` are wild), or
 * "duration:shop:order_begin..shop:order_end>50ms" (in one thread, from the last begin to an end; ns, us, ms, s, min, h). One by event
 * or duration asks at most once a second, and ever more seldom while it goes on firing. The environment variable DORMOUSE_SNAPSHOT_ON does the same without a call.
 *
 * For an overflow of its stack a thread needs an alternate one (sigaltstack(2)): the calling thread, and threads that trace an event
 * from then on, get one if they have none.
 *
 * Errors: -EINVAL  the list has an entry that is none of these, or is empty, and nothing was installed; or there are more than 16
 *                  patterns of events in all
 *         or what sigaction(2) says
 * MT-safe, not async-signal-safe.
 */
int dormouse_snapshot_on(const char *triggers);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
