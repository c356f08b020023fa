/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Snapshots of a flight recorder, for C11 and C++11: the events that `dormouse record --mode overwrite` has in memory, of all programs in
 * the session, are written as a trace of their own. The session goes on.
 *
 *     struct dormouse_snapshot taken;
 *     if (elapsed_ms > 100 && dormouse_snapshot(NULL, &taken) == 0)
 *         log("slow: %s has %llu events", taken.dir, (unsigned long long)taken.events);
 *
 *     dormouse_snapshot_on("crash,exit,USR2");           each of these triggers a snapshot
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

/* What to take. Zeroes: everything that is retained, into a new directory beside the session's. */
struct dormouse_snapshot_options {
    const char *dir;    /* the trace's directory, which must not exist or be empty; NULL: beside the session's, numbered */
    uint64_t last_ns;   /* events that are older than this many nanoseconds are left out; 0: none is */
    uint64_t bytes_max; /* the newest pages, at most this many bytes, are taken; 0: all; overrides last_ns */
};

/* The result of a snapshot. */
struct dormouse_snapshot {
    uint64_t events;       /* in the trace */
    uint64_t bytes;        /* of its streams */
    uint64_t span_ns;      /* from its oldest event to the snapshot */
    uint64_t pages_missed; /* were overwritten before they could be copied */
    char dir[DORMOUSE_SNAPSHOT_DIR_SIZE];     /* the trace's directory; cut if it is too long */
    char error[DORMOUSE_SNAPSHOT_ERROR_SIZE]; /* why there is no snapshot, as text; empty if there is one */
};

/*
 * Asks the session's owner for a snapshot, and waits until it is complete. Either argument may be NULL.
 *
 * Errors: -ENOTCONN  the program is in no session
 *         -EINVAL    the directory's name is not UTF-8
 *         -EIO       the owner could not be asked, or it refused: the session is not in overwrite mode, or the directory cannot be made;
 *                    `error` says which
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_snapshot(const struct dormouse_snapshot_options *options, struct dormouse_snapshot *taken);

/*
 * Asks for a snapshot, without waiting for it, whenever a trigger in a list such as "crash,exit,USR2" fires:
 *
 *     crash                                             SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS or SIGABRT ends the program,
 *                                                       as it would have; a fault that the program handles is none
 *     exit                                              the program ends
 *     USR2, SIGUSR2, 12                                 the signal arrives; its former handler still runs
 *     event:shop:order_failed                           an armed event occurs; `*` and `?` are wild
 *     duration:shop:order_begin..shop:order_end>50ms    in one thread, from the last begin to an end; ns, us, ms, s, min, h
 *
 * A trigger by event or duration asks at most once a second, and less and less often while it goes on firing. The environment variable
 * DORMOUSE_SNAPSHOT_ON does the same without a call.
 *
 * To report an overflow of its stack, a thread needs an alternate stack (sigaltstack(2)): the calling thread, and threads that trace an
 * event from then on, get one if they have none.
 *
 * Errors: -EINVAL  the list is empty or has an invalid entry, and no trigger was installed; or there are more than 16 patterns of events
 *                  in all
 *         and errors of sigaction(2)
 * MT-safe, not async-signal-safe.
 */
int dormouse_snapshot_on(const char *triggers);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
