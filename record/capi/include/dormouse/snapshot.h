/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Snapshots of a flight recorder, for C11 and C++11: the events that `dormouse record --mode overwrite` retains, of all
 * programs in the session, are written as a trace of their own. The session continues.
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

/* Options of a snapshot. All zeroes: all retained events, into a new directory beside the session's. */
struct dormouse_snapshot_options {
    const char *dir;    /* directory of the trace, empty or not existing; NULL: a numbered one beside the session's */
    uint64_t last_ns;   /* leave out events that are older than this many nanoseconds; 0: none */
    uint64_t bytes_max; /* maximum size of the newest pages that are taken, in bytes; 0: all; overrides last_ns */
};

/* The result of a snapshot. */
struct dormouse_snapshot {
    uint64_t events;       /* number of events in the trace */
    uint64_t bytes;        /* size of its streams, in bytes */
    uint64_t span_ns;      /* time from its oldest event to the snapshot, in nanoseconds */
    uint64_t pages_missed; /* number of pages that were overwritten before they could be copied */
    char dir[DORMOUSE_SNAPSHOT_DIR_SIZE];     /* directory of the trace; cut if it is too long */
    char error[DORMOUSE_SNAPSHOT_ERROR_SIZE]; /* reason why there is no snapshot, as text; empty if there is one */
};

/*
 * Asks the session's owner for a snapshot, and waits until it is complete. Either argument may be NULL.
 *
 * Errors: -ENOTCONN  the program is in no session
 *         -EINVAL    the directory's name is not UTF-8
 *         -EIO       the owner could not be asked, or refused because the session is not in overwrite mode or the
 *                    directory cannot be created; `error` has the reason
 * MT-safe, blocking, not async-signal-safe.
 */
int dormouse_snapshot(const struct dormouse_snapshot_options *options, struct dormouse_snapshot *taken);

/*
 * Requests a snapshot, without waiting for it, whenever a trigger in a list such as "crash,exit,USR2" fires:
 *
 *     crash                                             SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS or SIGABRT
 *                                                       ends the program, as it would have anyway; a fault that the
 *                                                       program handles is not a crash
 *     exit                                              the program ends
 *     USR2, SIGUSR2, 12                                 the signal arrives; its former handler still runs
 *     event:shop:order_failed                           an armed event occurs; `*` and `?` are wild
 *     duration:shop:order_begin..shop:order_end>50ms    in one thread, from the last begin to an end; ns, us, ms, s, min, h
 *
 * A trigger by event or duration requests at most one snapshot per second, and fewer while it keeps firing. The
 * environment variable DORMOUSE_SNAPSHOT_ON has the same effect as a call.
 *
 * To report an overflow of its stack, a thread needs an alternate stack (sigaltstack(2)): the calling thread, and
 * threads that trace an event from then on, get one if they have none.
 *
 * Errors: -EINVAL  the list is empty or has an invalid entry, and no trigger was installed; or there are more than 16
 *                  patterns of events in total
 *         and errors of sigaction(2)
 * MT-safe, not async-signal-safe.
 */
int dormouse_snapshot_on(const char *triggers);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
